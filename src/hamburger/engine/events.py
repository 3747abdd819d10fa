"""What a run tells while it goes on; a command shows it, a library caller may listen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hamburger.metrics.score import Score


@dataclass(frozen=True)
class Began:
    """`step` is where it starts or goes on."""

    run: Path
    step: int
    steps: int
    parameters: int
    train_images: int
    val_images: int | None  # None where nothing is validated
    device: str
    processes: int


@dataclass(frozen=True)
class Logged:
    """Means since the last such line; `data_wait` is the share of the time that waited for data."""

    step: int
    loss: float
    lr: float
    images_per_s: float
    data_wait: float
    remaining_s: float
    words: str = ""  # what to show in the place of the loss, where one number does not say it


@dataclass(frozen=True)
class Evaluated:
    """`scores` are those of the task, with their values; the first is what `best` speaks of."""

    step: int
    scores: tuple[tuple[Score, float], ...]
    best: bool


@dataclass(frozen=True)
class Drawn:
    """A sheet of samples."""

    step: int
    path: Path


@dataclass(frozen=True)
class Saved:
    step: int
    path: Path


@dataclass(frozen=True)
class Note:
    text: str


Event = Began | Logged | Evaluated | Drawn | Saved | Note
Listener = Callable[[Event], object]
