"""How fast training goes, and how much of it is waiting for data."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

COUNTED = ("images", "seconds", "waited", "warm_images", "warm_seconds")


@dataclass
class Clock:
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
