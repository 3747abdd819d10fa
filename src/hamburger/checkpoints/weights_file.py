"""Our weights format: one .safetensors file per network, with its constructor keywords and classes as metadata."""

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

VERSION = 1  # of the metadata; a reader refuses newer ones
KEY = "hamburger"  # of the metadata in the file
HUB_FILES = ("config.json", "model.safetensors")  # of a folder or repository in the layout of the Hugging Face hub
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Info:
    """What weights need to be useful: how to build their network and what its outputs mean.

    - `model`: the keywords that build the network, for example those of `create_model`
    - `classes`, `palette`: a name and a colour per class, in the order of the logits
    - `mean`, `std`: normalisation of RGB images in [0, 1]
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
            fields = json.loads(text)
            version = fields.pop("version")
            if version > VERSION:
                raise CheckpointError(
                    f"{source} was written by a newer version of hamburger (format {version}); upgrade to read it"
                )
            return cls(
                model=dict(fields["model"]),
                classes=tuple(str(name) for name in fields["classes"]),
                palette=tuple((int(r), int(g), int(b)) for r, g, b in fields["palette"]),
                mean=_read_rgb(fields["mean"]),
                std=_read_rgb(fields["std"]),
                extra=dict(fields["extra"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{source} does not describe a network of this library ({type(error).__name__}: {error}); "
                f"save it with hamburger.segmentation.save_weights"
            ) from error


def _read_rgb(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def write_weights(path: str | os.PathLike[str], net: nn.Module, info: Info, *, durable: bool = True) -> None:
    """Write the network and `info` to a file atomically, and flush it to disk.

    With durable=False the flush is skipped, so a power failure may lose the file.
    """
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    write = write_durably if durable else write_atomically
    write(Path(path), save(tensors, metadata={KEY: info.as_json()}))


def read_weights(call: str, path: str | os.PathLike[str], task: str | None = None) -> tuple[Info, dict[str, Tensor]]:
    """Return info and tensors that `write_weights` wrote; refuse a file of another task. Executes nothing in it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{call}: there is no file {path}")
    try:
        metadata, tensors = read_metadata(path), load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{call}: {path} ({path.stat().st_size} bytes) is not a readable .safetensors file: {error}"
        ) from error
    if KEY not in metadata:
        raise CheckpointError(
            f"{call}: {path} has no hamburger metadata, so it was not written by save_weights; pass weights of a "
            f"backbone to create_model(..., pretrained='{path}')"
        )
    info = Info.from_json(metadata[KEY], f"{call}: {path}")
    file_task = info.model.get("task")
    if file_task != task:
        got, expected = (name or "segmentation" for name in (file_task, task))
        raise CheckpointError(
            f"{call}: expected weights of the task '{expected}' (got '{got}' in {path}); "
            f"hamburger.tasks.task_of_weights finds the task of a file"
        )
    return info, tensors


def read_task_name(path: str | os.PathLike[str]) -> object:
    """Return the "task" entry of a weights file: None for segmentation, and for files that cannot be loaded."""
    from safetensors import SafetensorError

    try:
        return Info.from_json(read_metadata(path)[KEY], str(path)).model.get("task")
    except (SafetensorError, OSError, KeyError, CheckpointError):
        return None


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of any .safetensors file."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return file.metadata() or {}


def to_plain_json(value: Any) -> Any:
    """Convert tuples and sets to lists, recursively; values JSON cannot hold stay and are refused when saved."""
    if isinstance(value, Mapping):
        return {str(key): to_plain_json(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain_json(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [to_plain_json(item) for item in value]
    return value


def download_weights(call: str, repository: str, **options: Any) -> Path:
    """Return the weights file of a Hugging Face repository; `options` go to huggingface_hub."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, HUB_FILES[1], **options))
    except Exception as error:  # a download can fail with any exception
        reason = (str(error).strip().splitlines() or [""])[0]
        raise CheckpointError(
            f"{call}: '{repository}' is not a local path and could not be downloaded from the hub "
            f"({type(error).__name__}: {reason})"
        ) from error
