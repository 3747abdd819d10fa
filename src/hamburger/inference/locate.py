"""Find the weights file in a run folder or a hub folder."""

from __future__ import annotations

from pathlib import Path

from hamburger.errors import InputError
from hamburger.training.run_folder import BEST, RECIPE

HUB = ("config.json", "model.safetensors")


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
    if path.suffix == ".safetensors":
        return path
    if (path.parent / BEST).is_file():
        raise InputError(f"weights: {path} is not a weights file; name {path.parent / BEST} or {path.parent}")
    raise InputError(f"weights: {path} is not a .safetensors file; name a run folder or a file that `ham train` wrote")


def _in_folder(folder: Path) -> Path:
    if (folder / BEST).is_file():
        return folder / BEST
    if all((folder / name).is_file() for name in HUB):
        return folder / HUB[1]
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
        f"weights: {folder} holds neither {BEST} (a run) nor {' and '.join(HUB)} (a hub folder); "
        f"name the folder given to `ham train --run`"
    )
