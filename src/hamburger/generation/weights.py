"""Save a trained generator to one .safetensors file, load it, and find it in a run folder."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hamburger.checkpoints.weights_file import read_tensors
from hamburger.errors import CheckpointError, HamburgerError, InputError
from hamburger.files import write_durably
from hamburger.generation.model import Generator, create_gan
from hamburger.training.run_folder import RECIPE

KEY, VERSION = "hamburger.generator", 1


@dataclass(frozen=True)
class GeneratorInfo:
    """`classes`: names in order.   `extra`: anything else that JSON can hold, such as recipe and step"""

    classes: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


def save_generator(path: str | os.PathLike[str], generator: Generator, info: GeneratorInfo) -> None:
    """Write the generator to a file that is either complete or not there, and flushed to disk on return."""
    from safetensors.torch import save

    if generator.config is None:
        raise CheckpointError(
            "save_generator: this generator was not built by create_gan, so its options are unknown; build it with "
            "create_gan, or save its state_dict() yourself"
        )
    if len(info.classes) != generator.num_classes:
        raise CheckpointError(
            f"save_generator: info must name {generator.num_classes} classes, got {len(info.classes)}"
        )
    entry = {"version": VERSION, "model": generator.config, "classes": list(info.classes), "extra": info.extra}
    tensors = {name: value.detach().cpu().contiguous() for name, value in generator.state_dict().items()}
    write_durably(Path(path), save(tensors, metadata={KEY: json.dumps(entry)}))


def load_generator(path: str | os.PathLike[str]) -> tuple[Generator, GeneratorInfo]:
    """The generator in a file, on the CPU and in evaluation mode. Runs no code from the file."""
    metadata, tensors = read_tensors("load_generator", path)
    if KEY not in metadata:
        raise CheckpointError(f"load_generator: {path} is not a generator; expected a file that `ham gan train` wrote")
    broken = [name for name, value in tensors.items() if not value.isfinite().all()]
    if broken:
        raise CheckpointError(
            f"load_generator: {path} has {len(broken)} tensors that are not finite ({', '.join(broken[:6])}); use the "
            f"file of another step or run"
        )
    try:
        entry = json.loads(metadata[KEY])
        if entry["version"] > VERSION:
            raise CheckpointError(
                f"load_generator: {path} was written by a newer version of hamburger; upgrade to read it"
            )
        info = GeneratorInfo(tuple(map(str, entry["classes"])), dict(entry["extra"]))
        with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten: keep the caller's random state
            generator = create_gan(**entry["model"]).generator
        generator.load_state_dict(tensors)
    except CheckpointError:
        raise
    except (HamburgerError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(line.strip() for line in str(error).splitlines()[:3])
        raise CheckpointError(f"load_generator: the generator of {path} cannot be built: {reason}") from error
    return generator.eval(), info


# -- run folders -------------------------------------------------------------------------------------------------------

GENERATOR, SAMPLES = "generator.safetensors", "samples"


def open_generator(run_or_weights: Path) -> tuple[Generator, GeneratorInfo, Path]:
    """The generator of a run folder or weights file, its info, and the path of the file."""
    given = Path(run_or_weights)
    path = given if given.is_file() else given / GENERATOR
    if path.is_file():
        return (*load_generator(path), path)
    if (given / RECIPE).is_file():
        raise InputError(
            f"gan: the run {given} has no {GENERATOR} yet; it is written with the first checkpoint, so resume the run "
            f"with `ham gan train --resume`"
        )
    raise InputError(f"gan: {given} is neither a run of `ham gan train` nor a {GENERATOR}; give the folder of --run")
