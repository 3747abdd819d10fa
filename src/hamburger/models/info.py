"""What weights need beside them to be of use: how to build their network, and what its classes mean."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from hamburger.errors import CheckpointError

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
                f"save it with hamburger.models.weights.save_weights"
            ) from error


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue
