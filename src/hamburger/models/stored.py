"""One .safetensors file for a network of any task: its tensors, and in the metadata how to build and to use it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch import Tensor, nn

from hamburger.errors import CheckpointError
from hamburger.files import write_atomically, write_durably
from hamburger.models.info import Info

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
