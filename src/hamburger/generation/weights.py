"""Save a trained generator to one .safetensors file, load it, and find it in a run folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hamburger.checkpoints.network import load_network
from hamburger.checkpoints.weights_file import Info, write_weights
from hamburger.errors import CheckpointError, InputError
from hamburger.generation.model import Generator, create_gan
from hamburger.training.run_folder import RECIPE

TASK = "generation"  # in the metadata of the file


def save_generator(
    path: str | os.PathLike[str], generator: Generator, classes: Sequence[str], extra: Mapping[str, Any] | None = None
) -> None:
    """Write the generator to a weights file, with its class names in order and `extra`, anything that JSON can hold."""
    if len(classes) != generator.num_classes:
        raise CheckpointError(f"save_generator: there must be {generator.num_classes} classes, got {len(classes)}")
    half = (0.5, 0.5, 0.5)  # images in [-1, 1]
    info = Info({"task": TASK, **generator.config}, tuple(classes), mean=half, std=half, extra=dict(extra or {}))
    write_weights(path, generator, info)


def load_generator(path: str | os.PathLike[str]) -> tuple[Generator, Info]:
    """The generator in a file, on the CPU and in evaluation mode. Runs no code from the file."""
    return load_network("load_generator", path, TASK, lambda **config: create_gan(**config).generator)


# -- run folders -------------------------------------------------------------------------------------------------------

GENERATOR, SAMPLES = "generator.safetensors", "samples"


def open_generator(run_or_weights: Path) -> tuple[Generator, Info, Path]:
    """The generator of a run folder or weights file, its info, and the path of the file."""
    source = Path(run_or_weights)
    path = source if source.is_file() else source / GENERATOR
    if path.is_file():
        return (*load_generator(path), path)
    if (source / RECIPE).is_file():
        raise InputError(
            f"gan: the run {source} has no {GENERATOR} yet; it is written with the first checkpoint, so resume the run "
            f"with `ham gan train --resume`"
        )
    raise InputError(f"gan: {source} is neither a run of `ham gan train` nor a {GENERATOR}; give the folder of --run")
