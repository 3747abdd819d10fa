"""The metrics of a run for tensorboard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Board:
    """Numbers of each row under their names, terms of the loss and classes below them."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # what an interrupted run wrote beyond its checkpoint is hidden
        self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            entries = value if isinstance(value, Mapping) else {None: value}
            for inner, number in entries.items():
                if isinstance(number, int | float) and name != "step":
                    tag = name if inner is None else f"{name}/{inner}"
                    self.writer.add_scalar(tag, number, row["step"])

    def close(self) -> None:
        self.writer.close()
