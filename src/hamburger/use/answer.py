"""What a prediction is made of, whatever the task: a file for machines, a picture for eyes, some numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from hamburger.models.info import Info


@dataclass(frozen=True)
class Layout:
    """Where the files of a photograph go, and which value a class has in a label map."""

    label: Callable[[str], Path]
    overlay: Callable[[str], Path]
    values: tuple[int, ...] | None = None  # by class; None: the index of the class
    by_id: bool = False  # files are found by the stem of the photograph, which must be its own


@dataclass(frozen=True)
class Answer:
    """- `label`: the content of the file for machines;   `overlay`: makes that of the picture, where one is wanted
    - `found`: what the summary says of it besides, by the name of its field
    - `words`: the same in a few words for the terminal
    """

    label: bytes
    overlay: Callable[[], bytes]
    found: Mapping[str, Any]
    words: str
    tiles: int = 1


class Predicts(Protocol):
    """One photograph at a time. `suffix` is that of the file for machines, `protocol` says how it looks at images."""

    info: Info
    suffix: str

    @property
    def protocol(self) -> object: ...

    def answer(self, image: Tensor, where: Layout) -> Answer:
        """3 h w, uint8"""
