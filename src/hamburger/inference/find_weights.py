"""Weights files by name or path: those that ship with the package, of run folders and of hub folders."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import hamburger.checkpoints
from hamburger.checkpoints.weights_file import HUB_FILES, Info, write_tensors
from hamburger.errors import CheckpointError, InputError, check_path, did_you_mean
from hamburger.training.checkpoint import load as load_checkpoint
from hamburger.training.run_folder import BEST, RECIPE

LAST_WEIGHTS = "last.safetensors"  # of a run folder, written for `ham predict --last`
# <name>.safetensors and its model card <name>.md
SHIPPED = Path(hamburger.checkpoints.__file__).parent / "weights"


def list_weights() -> list[str]:
    """Return the names of the trained weights that are part of this package, for `load`, `Predictor` and `ham`.

    >>> hb.list_weights()
    []
    """
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))


def shipped_file(name: str | os.PathLike[str]) -> Path | None:
    """Return the file of shipped weights; None where no weights have this name."""
    check_path("weights", "the name", name)
    return SHIPPED / f"{name}.safetensors" if str(name) in list_weights() else None


def suggest_weights(name: str | os.PathLike[str]) -> str:
    """Return the end of an error message: a shipped name that the given one may mean; empty if none are shipped."""
    return did_you_mean(str(name), names) if (names := list_weights()) else ""


def find_weights(name: str | os.PathLike[str]) -> Path:
    """The weights file of a name or path; a name of `list_weights` comes before a path.

    Of a run folder that is `best.safetensors`, of a hub folder (with `config.json`) `model.safetensors`; a
    `.safetensors` file is itself.
    """
    if (shipped := shipped_file(name)) is not None:
        return shipped
    path = Path(name)
    if path.is_dir():
        return _in_folder(path)
    if not path.exists():
        raise InputError(
            f"weights: there is no {path}; name a run folder (of `ham train`), a .safetensors file, or weights of "
            f"`ham list weights`{suggest_weights(name)}"
        )
    if path.suffix != ".safetensors":
        best = path.parent / BEST
        advice = f"{best} or {path.parent}" if best.is_file() else "a run folder or a file that `ham train` wrote"
        raise InputError(f"weights: {path} is not a .safetensors file; name {advice}")
    return path


def write_last_weights(run: Path) -> Path:
    """Write the weights of a run's last checkpoint to its `last.safetensors`, and return that path."""
    checkpoint = load_checkpoint(run) if run.is_dir() else None
    if checkpoint is None:
        raise InputError(f"weights: {run} has no checkpoint; --last takes the folder of a run that has trained a while")
    model, info = checkpoint.state.get("model"), checkpoint.state.get("info")
    if not isinstance(info, str) or not isinstance(model, dict) or not all(map(torch.is_tensor, model.values())):
        raise CheckpointError(
            f"weights: {checkpoint.path} does not describe its network: it belongs to a GAN, or an older version wrote "
            f"it; leave out --last, or continue `ham train` with --resume"
        )
    path = run / LAST_WEIGHTS
    write_tensors(path, model, Info.from_json(info, f"weights: {checkpoint.path}"), durable=False)
    return path


def _in_folder(folder: Path) -> Path:
    if (folder / BEST).is_file():
        return folder / BEST
    if all((folder / name).is_file() for name in HUB_FILES):
        return folder / HUB_FILES[1]
    if (folder / RECIPE).is_file():
        raise InputError(
            f"weights: the run {folder} has no {BEST} yet; it is written at the first evaluation, so continue "
            f"`ham train` with --resume, or use the last checkpoint: `ham predict {folder} --last`"
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
