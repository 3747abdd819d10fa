"""What `ham predict` needs from a task: a predictor of image files, and what it returns for one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info


@dataclass(frozen=True)
class FilePrediction:
    """`row`: fields of summary.json.   `cells`: of the table on the terminal.   `files`: file contents by kind."""

    row: dict[str, Any]
    cells: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


class FilePredictor(ABC):
    """`predictor(path)` reads one image file and predicts it; where `pairs` is set it takes two paths.

    The constructor takes the network, its weights' `Info`, the device, and as keywords the options of `ham predict`
    that apply to the task. `files` maps each kind of output file to a function from the image's name to a path below
    the output folder. With `by_id`, output files are named by the image's file name alone, so these must differ.
    """

    columns: ClassVar[tuple[str, ...]]  # of the table on the terminal
    pairs: ClassVar[bool] = False  # whether it takes two images, LEFT RIGHT
    remedy: ClassVar[str] = "take another --device"  # advice when memory runs out
    files: Mapping[str, Callable[[str], Path]] = {}
    by_id = False

    def __init__(self, net: nn.Module, info: Info, device: torch.device) -> None:
        self.net, self.info, self.device = net.to(device).eval(), info, device

    @abstractmethod
    def __call__(self, *paths: Path) -> FilePrediction:
        """Predict one image; raise InputError where the file cannot be used."""

    def settings(self) -> dict[str, Any]:
        """Fields of summary.json that hold for all images."""
        return {"classes": list(self.info.classes)}

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
        """Remarks on the rows, to print after the table."""
        return ()
