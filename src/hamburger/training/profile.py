"""`ham train --profile`: where the time of a training step goes, by phase and by operator."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from hamburger.devices import synchronize
from hamburger.files import write_atomically

WARM_UP = 5  # steps that are not measured: kernels are compiled and chosen
TIMED = 10  # steps whose phases are timed
TRACED = 3  # steps whose operators torch's profiler records, apart from the others because it slows them down
STEPS = WARM_UP + TIMED + TRACED + 1


class StepProfile:
    """Times the phases of some early steps, then traces the operators of a few more, and writes both to a file.

    `mark(phase)` ends a phase: it waits for the device and counts the time since the last mark. The phase "data" begins
    a step. Results of the training do not change.
    """

    def __init__(self, folder: Path, device: torch.device, note: Callable[[str], object]) -> None:
        self.path, self.device, self.note = folder / "profile.txt", device, note
        self.seconds: dict[str, float] = {}
        self.step, self.last = 0, 0.0
        kinds = {ProfilerActivity.CPU, getattr(ProfilerActivity, device.type.upper(), ProfilerActivity.CPU)}
        self.tracer = profile(activities=kinds, acc_events=True)  # or torch 2.11 warns, although there is one cycle

    def mark(self, phase: str) -> None:
        if self.step == STEPS:
            return
        synchronize(self.device)
        now = time.perf_counter()
        if WARM_UP < self.step <= WARM_UP + TIMED:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self.last
        if phase == "data":
            self.step += 1
            if self.step == WARM_UP + TIMED + 1:
                self.tracer.start()
            elif self.step == STEPS:
                self.tracer.stop()
                self._write()
        self.last = now

    def _write(self) -> None:
        total = sum(self.seconds.values())
        lines = [f"{name:24}{1e3 * s / TIMED:12.3f}{100 * s / total:9.1f} %" for name, s in self.seconds.items()]
        order = "self_cpu_time_total" if self.device.type == "cpu" else "self_device_time_total"
        table = self.tracer.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=60)
        text = "\n".join(
            [
                f"Mean of {TIMED} steps on {self.device.type}, after {WARM_UP} steps; each phase waits for the device",
                f"{'phase':24}{'ms a step':>12}{'share':>11}",
                *lines,
                f"{'all':24}{1e3 * total / TIMED:12.3f}",
                "",
                f"Operators of {TRACED} further steps, from torch.profiler",
                table,
            ]
        )
        write_atomically(self.path, text.encode())
        shares = ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in self.seconds.items())
        self.note(f"time of a step: {shares}; operators in {self.path}")
