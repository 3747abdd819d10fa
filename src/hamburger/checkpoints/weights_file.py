"""One .safetensors file per network: tensors, and in the metadata how to build it and what its classes mean."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hamburger.errors import CheckpointError
from hamburger.files import write_atomically, write_durably


def plain(value: Any) -> Any:
    """As JSON has it: lists for tuples and sets; what JSON cannot hold stays, and is refused when it is saved."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


# ----------------------------------------------------------------------------------------------------------------------
# What weights need beside them to be of use: how to build their network, and what its classes mean.


VERSION = 1  # of this form; a reader refuses a later one
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Info:
    """- `model`: the keywords of `create_model`; a saved file has those of the saved network
    - `classes`, `palette`: a name and a colour per class, in the order of the logits
    - `mean`, `std`: of the images in [0, 1], RGB, that the network was trained on
    - `extra`: anything else that JSON can hold
    """

    model: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    palette: tuple[Colour, ...] = ()
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    extra: dict[str, Any] = field(default_factory=dict)

    def as_json(self, *, indent: int | None = None) -> str:
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=indent)

    @classmethod
    def from_json(cls, text: str, source: str) -> Info:
        try:
            found = json.loads(text)
            version = found.pop("version")
            if version > VERSION:
                raise CheckpointError(f"{source} is of a later form ({version}); install a newer hamburger")
            return cls(
                model=dict(found["model"]),
                classes=tuple(str(name) for name in found["classes"]),
                palette=tuple((int(r), int(g), int(b)) for r, g, b in found["palette"]),
                mean=_three(found["mean"]),
                std=_three(found["std"]),
                extra=dict(found["extra"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{source} does not describe a network of this library ({type(error).__name__}: {error}); "
                f"save it with hamburger.segmentation.weights.save_weights"
            ) from error


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


# ----------------------------------------------------------------------------------------------------------------------
# One .safetensors file for a network of any task: its tensors, and in the metadata how to build and to use it.


KEY = "hamburger"  # of the metadata


def write_stored(path: str | os.PathLike[str], net: nn.Module, info: Info, *, durable: bool = True) -> None:
    """A file that is either complete or not there, and on the disk when this returns.

    Without `durable` the disk is not waited for, and a loss of power may lose the file.
    """
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    write = write_durably if durable else write_atomically
    write(Path(path), save(tensors, metadata={KEY: info.as_json()}))


def read_stored(call: str, path: str | os.PathLike[str], task: str | None = None) -> tuple[Info, dict[str, Tensor]]:
    """What `write_stored` wrote of a network for that task, which `info.model` names. Runs nothing in the file."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{call}: there is no file {path}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{call}: {path} ({path.stat().st_size} bytes) is not a readable .safetensors file: {error}"
        ) from error
    if KEY not in metadata:
        raise CheckpointError(
            f"{call}: {path} does not say which network it is of; it was not written by save_weights. Weights "
            f"of an encoder alone go into create_model(..., pretrained='{path}')"
        )
    info = Info.from_json(metadata[KEY], f"{call}: {path}")
    found = info.model.get("task")
    if found != task:
        spoken = ["a segmentation network" if each is None else f"the task '{each}'" for each in (found, task)]
        raise CheckpointError(
            f"{call}: {path} is of {spoken[0]}, and this needs {spoken[1]}; the commands choose by the file, and so "
            f"does hamburger.tasks.task_of_weights"
        )
    return info, tensors


def stored_task(path: str | os.PathLike[str]) -> object:
    """What a weights file says under "task": None for segmentation, and where loading it will fail."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            said = json.loads((file.metadata() or {}).get(KEY, "{}"))
    except (SafetensorError, OSError, ValueError):
        return None
    model = said.get("model") if isinstance(said, dict) else None
    return model.get("task") if isinstance(model, dict) else None
