"""What a trained network makes of a person's photographs, in a form that one job can write down for every task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

if TYPE_CHECKING:
    from hamburger.models.info import Info


@dataclass(frozen=True)
class Answer:
    """`row`: fields of summary.json.   `cells`: for the table on the terminal.   `files`: contents by their kind"""

    row: dict[str, Any]
    cells: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


class Answers(ABC):
    """`answers(path)`: one photograph, read and predicted; of `pairs` both paths.

    The constructor takes the network, what is known of it, the device, and by name those options of `ham predict` that
    mean something to the task. `files` gives each kind of file a path below the output folder, from the photograph's
    name; with `by_id` names are those of the files alone, which must then differ.
    """

    columns: ClassVar[tuple[str, ...]]  # of the table on the terminal
    pairs: ClassVar[bool] = False  # whether it looks at two photographs at once, LEFT RIGHT
    remedy: ClassVar[str] = "take another --device"  # where memory does not suffice
    files: Mapping[str, Callable[[str], Path]] = {}
    by_id = False

    def __init__(self, net: nn.Module, info: Info, device: torch.device) -> None:
        self.net, self.info, self.device = net.to(device).eval(), info, device

    @abstractmethod
    def __call__(self, *paths: Path) -> Answer:
        """An InputError where the file cannot be used."""

    def settings(self) -> dict[str, Any]:
        """What summary.json says of all photographs."""
        return {"classes": list(self.info.classes)}

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
        """What a person should know of the rows that were made."""
        return ()
