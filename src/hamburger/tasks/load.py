"""Trained networks of any task from a name, a path or the hub, and the lists of names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hamburger.checkpoints.weights_file import HUB_FILES, download_weights
from hamburger.errors import InputError
from hamburger.training.run_folder import BEST, RECIPE

# Published weights: name -> repository on the Hugging Face hub. None are published yet.
SHIPPED: dict[str, str] = {}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load(name: str | os.PathLike[str], *, device: str | torch.device = "cpu", **hub_options: Any) -> nn.Module:
    """Return the trained network of a weights file, a run folder or a Hugging Face repository, in evaluation mode.

    >>> net = hb.load("runs/voc")                          # the best weights of a run
    >>> net = hb.load("runs/voc/best.safetensors")         # a weights file, or a folder with config.json
    >>> net = hb.load("someone/hamnet-voc", revision="v1") # a repository on the hub, or a name of hb.list_weights()

    The file says which task it is for, so a segmentation network, a classifier, a detector, a stereo network or a GAN's
    generator comes back. Its `info` holds class names and normalisation. `hub_options` go to huggingface_hub:
    `revision`, `token`, `cache_dir`, `local_files_only`, `force_download`. Nothing in the file is executed.
    """
    from hamburger.checkpoints.weights_file import read_task_name
    from hamburger.generation.weights import TASK, load_generator
    from hamburger.tasks import task_of_weights

    path = _find_file(name, hub_options)
    net: Any
    net, info = load_generator(path) if read_task_name(path) == TASK else task_of_weights(path).load(path)
    net.info = info
    return net.to(device)


def list_models() -> list[str]:
    """Return the names that `create_model` takes: the segmentation heads.

    >>> "hamnet" in hb.list_models()
    True
    """
    from hamburger.segmentation.model import models

    return models.names()


def list_weights() -> list[str]:
    """Return the names of the trained weights that `load` downloads. None are published yet.

    >>> hb.list_weights()
    []
    """
    return sorted(SHIPPED)


def _find_file(name: str | os.PathLike[str], hub_options: dict[str, Any]) -> Path:
    from hamburger.generation.weights import GENERATOR

    path = Path(name)
    if path.exists() and str(name) not in SHIPPED:
        if hub_options:
            raise InputError(f"load: {path} is a local path; leave out {', '.join(hub_options)}, options of the hub")
        return path / GENERATOR if (path / GENERATOR).is_file() else find_weights(path)
    repository = SHIPPED.get(str(name), str(name))
    if not isinstance(name, str) or not HUB_ID.fullmatch(repository):
        known = f", or one of {', '.join(list_weights())}" if SHIPPED else ""
        raise InputError(
            f"load: there is no file or folder {str(name)!r}; pass a weights file, a run folder of `ham train`, or a "
            f"Hugging Face repository 'owner/name'{known}"
        )
    return download_weights("load", repository, **hub_options)


def find_weights(run_or_weights: Path) -> Path:
    """The weights file of a path.

    Of a run folder that is `best.safetensors`, of a hub folder (with `config.json`) `model.safetensors`; a
    `.safetensors` file is itself.
    """
    path = Path(run_or_weights)
    if path.is_dir():
        return _in_folder(path)
    if not path.exists():
        raise InputError(f"weights: there is no {path}; name a run folder (of `ham train`) or a .safetensors file")
    if path.suffix != ".safetensors":
        best = path.parent / BEST
        advice = f"{best} or {path.parent}" if best.is_file() else "a run folder or a file that `ham train` wrote"
        raise InputError(f"weights: {path} is not a .safetensors file; name {advice}")
    return path


def _in_folder(folder: Path) -> Path:
    if (folder / BEST).is_file():
        return folder / BEST
    if all((folder / name).is_file() for name in HUB_FILES):
        return folder / HUB_FILES[1]
    if (folder / RECIPE).is_file():
        raise InputError(
            f"weights: the run {folder} has no {BEST} yet; it is written at the first evaluation, "
            f"so continue `ham train` with --resume"
        )
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return others[0]
    if others:
        raise InputError(f"weights: {folder} holds {len(others)} weights files; name one, such as {others[0]}")
    raise InputError(
        f"weights: {folder} holds neither {BEST} (a run) nor {' and '.join(HUB_FILES)} (a hub folder); "
        f"name the folder given to `ham train --run`"
    )
