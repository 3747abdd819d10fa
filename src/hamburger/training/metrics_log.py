"""What a run reports: events, losses of the latest steps, TensorBoard, throughput and memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.devices import peak_memory
from hamburger.training.task import Metric

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@dataclass(frozen=True)
class CheckProgress:
    """Images read so far by the check of the data before a new run; `done` is 0 at its start, and `total` after it."""

    done: int
    total: int


@dataclass(frozen=True)
class RunStarted:
    """`step` is where it starts or resumes."""

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
    """Means since the last line of the log; `data_wait` is the share of the time spent waiting for data."""

    step: int
    loss: float
    lr: float
    images_per_s: float
    data_wait: float
    remaining_s: float
    loss_text: str = ""  # shown instead of the loss, where one number is not enough


@dataclass(frozen=True)
class ValidationProgress:
    """Images scored so far; `done` is 0 at the start of an evaluation, and `total` after it."""

    done: int
    total: int


@dataclass(frozen=True)
class ScoresEvaluated:
    """`scores` are those of the task, with their values; `best` is about the first."""

    step: int
    scores: tuple[tuple[Metric, float], ...]
    best: bool


@dataclass(frozen=True)
class SamplesDrawn:
    """A grid of generated samples was written."""

    step: int
    path: Path


@dataclass(frozen=True)
class CheckpointSaved:
    step: int
    path: Path


@dataclass(frozen=True)
class Note:
    text: str


Event = (
    CheckProgress
    | RunStarted
    | StepLogged
    | ValidationProgress
    | ScoresEvaluated
    | SamplesDrawn
    | CheckpointSaved
    | Note
)
Listener = Callable[[Event], object]


# -- losses of the latest steps ----------------------------------------------------------------------------------------


class LossRecord:
    """The loss terms of every step since the last line of the log, and the ids of their images.

    They stay on the device, so that recording them does not make a step wait for it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.names: list[str] = []
        self.values = torch.empty(0, 0, device=device)  # steps terms
        self.steps: list[int] = []  # cleared with each line of the log
        self.ids: list[list[str]] = []  # of each step

    def add(self, step: int, terms: Mapping[str, Tensor], ids: Sequence[str]) -> None:
        if list(terms) != self.names:
            self.names = list(terms)
            self.values = torch.zeros(64, len(terms), device=self.device)
            self.clear()
        if len(self.steps) == len(self.values):
            self.values = torch.cat([self.values, torch.zeros_like(self.values)])
        self.values[len(self.steps)] = torch.stack([value.detach().float() for value in terms.values()])
        self.steps.append(step)
        self.ids.append(list(ids))

    def clear(self) -> None:
        self.steps, self.ids = [], []

    def global_values(self) -> Tensor:
        """The terms over the global batch; this waits for the device.   steps terms"""
        return (distributed.sum_over_ranks(self.values[: len(self.steps)]) / distributed.world_size()).cpu()

    def state(self) -> dict[str, Any]:
        return {"names": list(self.names), "steps": list(self.steps), "values": self.global_values().clone()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.names, self.steps = list(state["names"]), list(state["steps"])
        self.ids = [[] for _ in self.steps]
        self.values = torch.zeros(max(64, len(self.steps)), len(self.names), device=self.device)
        self.values[: len(self.steps)] = state["values"].to(self.device)


def add_to_tensorboard(writer: SummaryWriter, row: Mapping[str, Any]) -> None:
    """Write the numbers of a row under their names; loss terms and classes as `name/term`."""
    for name, value in row.items():
        entries = {f"{name}/{inner}": x for inner, x in value.items()} if isinstance(value, Mapping) else {name: value}
        for tag, number in entries.items():
            if isinstance(number, int | float) and tag != "step":
                writer.add_scalar(tag, number, row["step"])


# -- throughput and memory ---------------------------------------------------------------------------------------------


COUNTED = ("images", "seconds", "waited", "images_after_warmup", "seconds_after_warmup")


@dataclass
class ThroughputClock:
    """Counts training steps only: `end_interval` before an evaluation or a checkpoint, `start` after it.

    Call both when the device is idle, or its work is counted in the wrong place. A resumed run continues from the
    stored `state`, unless that is from other hardware.
    """

    images: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    images_after_warmup: int = 0  # without the first interval, in which kernels are compiled and chosen
    seconds_after_warmup: float = 0.0
    peak: float = 0.0  # MiB, of earlier parts of the run
    _began: float | None = None
    _intervals: int = 0  # of this process, whose first one is slow again

    def start(self) -> None:
        self._began = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds since the current interval began."""
        return 0.0 if self._began is None else time.perf_counter() - self._began

    def end_interval(self, images: int, waited: float) -> tuple[float, float]:
        """End an interval and begin the next: its images per second, and the share of it spent waiting for data."""
        now = time.perf_counter()
        spent = now - (now if self._began is None else self._began)
        self._began = now
        self.images += images
        self.seconds += spent
        self.waited += waited
        self._intervals += images > 0
        if self._intervals > 1 and images:
            self.images_after_warmup += images
            self.seconds_after_warmup += spent
        return (images / spent, min(1.0, waited / spent)) if spent > 0 else (0.0, 0.0)

    def state(self, device: torch.device, hardware: str) -> dict[str, float | str]:
        counts = {name: getattr(self, name) for name in COUNTED}
        return {**counts, "peak": self.peak_mb(device), "hardware": hardware}

    def load(self, state: Mapping[str, float | str], hardware: str) -> None:
        if state.get("hardware") == hardware:  # older checkpoints do not store it
            for name in (*COUNTED, "peak"):
                setattr(self, name, state[name])

    def peak_mb(self, device: torch.device) -> float:
        """Peak memory in MiB: of tensors on a GPU, of the process on a CPU, 0 if the system does not report it."""
        if (on_device := peak_memory(device)) is not None:
            return max(self.peak, on_device / 2**20)
        try:
            import resource
        except ImportError:  # Windows
            return self.peak
        unit = 1 if sys.platform == "darwin" else 1024
        return max(self.peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20)

    @property
    def images_per_s(self) -> float | None:
        """None where no step was made, as after resuming at the last step on another machine."""
        if self.images_after_warmup:
            return self.images_after_warmup / self.seconds_after_warmup
        return self.images / self.seconds if self.images else None

    @property
    def data_wait(self) -> float:
        return min(1.0, self.waited / self.seconds) if self.seconds > 0 else 0.0
