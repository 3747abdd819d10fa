"""Where a trained generator lies: a run folder, or a file of it."""

from __future__ import annotations

from pathlib import Path

from hamburger.engine.folder import RECIPE
from hamburger.engine.gan.loop import GENERATOR
from hamburger.errors import InputError
from hamburger.gan.generator import Generator
from hamburger.gan.weights import GeneratorInfo, load_generator


def find_generator(run_or_weights: Path) -> Path:
    path = Path(run_or_weights)
    if path.is_file():
        return path
    if (path / GENERATOR).is_file():
        return path / GENERATOR
    if (path / RECIPE).is_file():
        raise InputError(
            f"gan: the run {path} has no {GENERATOR} yet; it comes with the first checkpoint, so let `ham gan train` "
            f"go on with --resume"
        )
    raise InputError(f"gan: {path} is no run of `ham gan train`, nor a {GENERATOR}; name the folder given to --run")


def open_generator(run_or_weights: Path) -> tuple[Generator, GeneratorInfo, Path]:
    path = find_generator(run_or_weights)
    return (*load_generator(path), path)
