"""Trained networks of any task from a name, a path or the hub, and the lists of names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hamburger.checkpoints.weights_file import download_weights
from hamburger.errors import InputError
from hamburger.inference.find_weights import find_weights, shipped_file, suggest_weights
from hamburger.registry import explain_errors

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@explain_errors("load")
def load(name: str | os.PathLike[str], *, device: str | torch.device = "cpu", **hub_options: Any) -> nn.Module:
    """Return a trained network by name, of a run folder, a file or a Hugging Face repository, in evaluation mode.

    >>> net = hb.load(name)                                # a name of hb.list_weights()
    >>> net = hb.load("runs/voc")                          # the best weights of a run
    >>> net = hb.load("runs/voc/best.safetensors")         # a weights file, or a folder with config.json
    >>> net = hb.load("someone/hamnet-voc", revision="v1") # a repository on the hub

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


def _find_file(name: str | os.PathLike[str], hub_options: dict[str, Any]) -> Path:
    from hamburger.generation.weights import GENERATOR

    path = shipped_file(name) or Path(name)  # "./name" is a path, whatever is shipped
    if path.exists():
        if hub_options:
            raise InputError(f"load: {path} is a local path; leave out {', '.join(hub_options)}, options of the hub")
        return path / GENERATOR if (path / GENERATOR).is_file() else find_weights(name)
    if not isinstance(name, str) or not HUB_ID.fullmatch(name):
        raise InputError(
            f"load: there is no file or folder {str(name)!r}; pass a weights file, a run folder of `ham train`, a "
            f"Hugging Face repository 'owner/name', or a name of hb.list_weights(){suggest_weights(name)}"
        )
    return download_weights("load", name, **hub_options)
