"""What a run reports: events, losses of the latest steps, TensorBoard, throughput and memory."""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.training.scores import Score


@dataclass(frozen=True)
class RunStarted:
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
class StepLogged:
    """Means since the last such line; `data_wait` is the share of the time that waited for data."""

    step: int
    loss: float
    lr: float
    images_per_s: float
    data_wait: float
    remaining_s: float
    words: str = ""  # what to show in the place of the loss, where one number does not say it


@dataclass(frozen=True)
class ScoresEvaluated:
    """`scores` are those of the task, with their values; the first is what `best` speaks of."""

    step: int
    scores: tuple[tuple[Score, float], ...]
    best: bool


@dataclass(frozen=True)
class SamplesDrawn:
    """A sheet of samples."""

    step: int
    path: Path


@dataclass(frozen=True)
class CheckpointSaved:
    step: int
    path: Path


@dataclass(frozen=True)
class Note:
    text: str


Event = RunStarted | StepLogged | ScoresEvaluated | SamplesDrawn | CheckpointSaved | Note
Listener = Callable[[Event], object]


# ----------------------------------------------------------------------------------------------------------------------
# Losses of the latest steps, kept on the device: writing them down makes no step wait.


class LossRecord:
    """The terms of every step since the last line of the log, at most `capacity`, and the images they came from."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity, self.device = capacity, device
        self.names: list[str] = []
        self.values = torch.empty(0, 0, device=device)  # steps terms
        self.steps: list[int] = []
        self.ids: deque[tuple[int, list[str]]] = deque(maxlen=capacity)

    def add(self, step: int, terms: Mapping[str, Tensor], ids: Sequence[str]) -> None:
        if list(terms) != self.names:
            self.names = list(terms)
            self.values = torch.zeros(self.capacity, len(terms), device=self.device)
            self.steps = []
        self.values[len(self.steps)] = torch.stack([value.detach().float() for value in terms.values()])
        self.steps.append(step)
        self.ids.append((step, list(ids)))

    def global_values(self) -> Tensor:
        """The terms over the global batch; this waits for the device.   steps terms"""
        return (distributed.sum_over_ranks(self.values[: len(self.steps)]) / distributed.world_size()).cpu()

    def ids_of(self, step: int) -> list[str]:
        return next((ids for known, ids in self.ids if known == step), [])

    def clear(self) -> None:
        self.steps = []

    def state(self) -> dict[str, Any]:
        return {"names": list(self.names), "steps": list(self.steps), "values": self.global_values().clone()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.names, self.steps = list(state["names"]), list(state["steps"])
        self.values = torch.zeros(self.capacity, len(self.names), device=self.device)
        self.values[: len(self.steps)] = state["values"].to(self.device)


def first_nonfinite_step(values: Tensor, steps: Sequence[int]) -> int | None:
    """The first step with a term that is not finite.   values: steps terms"""
    good = torch.isfinite(values).all(1)
    return None if bool(good.all()) else steps[int((~good).nonzero()[0])]


# ----------------------------------------------------------------------------------------------------------------------
# The metrics of a run for tensorboard.


class TensorBoardLog:
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


# ----------------------------------------------------------------------------------------------------------------------
# How fast training goes, and how much of it is waiting for data.


COUNTED = ("images", "seconds", "waited", "warm_images", "warm_seconds")


@dataclass
class ThroughputClock:
    """Counts training steps only: `lap` before an evaluation or a checkpoint, `start` after it.

    Call both when the device has nothing left to do, or its work is counted in the wrong place. A run that goes on
    counts on from the `state` of the one before, unless that ran elsewhere.
    """

    images: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    warm_images: int = 0  # without the first stretch, in which kernels are chosen, compiled and cached
    warm_seconds: float = 0.0
    peak: float = 0.0  # MiB, of what ran before
    _began: float | None = None
    _stretches: int = 0  # of this process: its first one is cold again

    def start(self) -> None:
        self._began = time.perf_counter()

    def lap(self, images: int, waited: float) -> tuple[float, float]:
        """End a stretch and begin the next; its images a second, and the share of it that waited for data."""
        now = time.perf_counter()
        spent = now - (now if self._began is None else self._began)
        self._began = now
        self.images += images
        self.seconds += spent
        self.waited += waited
        self._stretches += images > 0
        if self._stretches > 1 and images:
            self.warm_images += images
            self.warm_seconds += spent
        return (images / spent, min(1.0, waited / spent)) if spent > 0 else (0.0, 0.0)

    def state(self, device: torch.device, place: str) -> dict[str, float | str]:
        own = {name: getattr(self, name) for name in COUNTED}
        return {**own, "peak": self.peak_mb(device), "place": place}

    def load(self, state: Mapping[str, float | str], place: str) -> None:
        if state.get("place") == place:
            for name in (*COUNTED, "peak"):
                setattr(self, name, state[name])

    def peak_mb(self, device: torch.device) -> float:
        return max(self.peak, peak_mb(device))

    @property
    def images_per_s(self) -> float | None:
        """None where nothing was trained on, as after resuming at the last step on another machine."""
        if self.warm_images:
            return self.warm_images / self.warm_seconds
        return self.images / self.seconds if self.images else None

    @property
    def data_wait(self) -> float:
        return min(1.0, self.waited / self.seconds) if self.seconds > 0 else 0.0


def peak_mb(device: torch.device) -> float:
    """The most memory that tensors took on a GPU, or that the process took on a CPU, in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
