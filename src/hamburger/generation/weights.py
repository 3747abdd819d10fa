"""A trained generator in one .safetensors file, and where to find it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hamburger.errors import CheckpointError, HamburgerError, InputError
from hamburger.files import write_durably
from hamburger.generation.networks.create import create_gan
from hamburger.generation.networks.generator import Generator
from hamburger.training.run_folder import RECIPE

KEY, VERSION = "hamburger.generator", 1


@dataclass(frozen=True)
class GeneratorInfo:
    """`classes`: their names in order.   `extra`: anything else that JSON can hold, such as recipe and step"""

    classes: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


def save_generator(path: str | os.PathLike[str], generator: Generator, info: GeneratorInfo) -> None:
    """Write it to a file that is either complete or not there, and on the disk when this returns."""
    from safetensors.torch import save

    if generator.config is None:
        raise CheckpointError(
            "save_generator: this generator was put together by hand, and nothing says how to build it again; build "
            "it with create_gan, or save its state_dict() yourself"
        )
    if len(info.classes) != generator.num_classes:
        raise CheckpointError(
            f"save_generator: the generator has {generator.num_classes} classes, and info names {len(info.classes)}"
        )
    entry = {"version": VERSION, "model": generator.config, "classes": list(info.classes), "extra": info.extra}
    tensors = {name: value.detach().cpu().contiguous() for name, value in generator.state_dict().items()}
    write_durably(Path(path), save(tensors, metadata={KEY: json.dumps(entry)}))


def load_generator(path: str | os.PathLike[str]) -> tuple[Generator, GeneratorInfo]:
    """The generator of a file, on the CPU and in evaluation mode. Runs nothing in the file."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"load_generator: there is no file {path}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"load_generator: {path} ({path.stat().st_size} bytes) is not a readable .safetensors file: {error}"
        ) from error
    if KEY not in metadata:
        raise CheckpointError(f"load_generator: {path} is no generator; `ham gan train` writes generator.safetensors")
    broken = [name for name, value in tensors.items() if not value.isfinite().all()]
    if broken:
        raise CheckpointError(
            f"load_generator: {path} has {len(broken)} tensors that are not finite ({', '.join(broken[:6])}), so that "
            f"its images would be black or grey; take the file of another step or run"
        )
    try:
        entry = json.loads(metadata[KEY])
        if entry["version"] > VERSION:
            raise CheckpointError(f"load_generator: {path} is of a later form; install a newer hamburger")
        info = GeneratorInfo(tuple(map(str, entry["classes"])), dict(entry["extra"]))
        model = dict(entry["model"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"load_generator: {path} does not describe a generator ({error})") from error
    try:
        with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten: leave the caller's draws alone
            generator = create_gan(**model).generator
        generator.load_state_dict(tensors)
    except (HamburgerError, TypeError, RuntimeError) as error:
        said = " ".join(line.strip() for line in str(error).splitlines()[:3])
        raise CheckpointError(f"load_generator: {path} cannot be built here: {said}") from error
    return generator.eval(), info


# ----------------------------------------------------------------------------------------------------------------------
# The training loop of a GAN: moves of both networks, sheets of samples, and a watch for games that are over.


GENERATOR, SAMPLES = "generator.safetensors", "samples"


# ----------------------------------------------------------------------------------------------------------------------
# Where a trained generator lies: a run folder, or a file of it.


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
