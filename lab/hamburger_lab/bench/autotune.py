"""Find the fastest build and memory format of a module, and measure it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hamburger.errors import HamburgerError
from hamburger_lab.bench.timed_module import LONG_MS, BenchSetting, TimedModule, calls_per_sample
from hamburger_lab.bench.timing import TimeBudget, Timing

MODES = ("infer", "train")
# Share of a row's time budget by the end of which a mode stops sampling. Training comes last, as its calls take about
# three times as long.
BUDGET_SHARES = {"infer": 0.4, "train": 1.0}


@dataclass(frozen=True)
class ModeMeasurement:
    """The measurement of one mode of a module, and how it was built."""

    mode: str
    build: str
    memory_format: str
    timing: Timing
    repeats: int
    block: int  # calls in one sample
    mb: float


def measure_fastest(
    setting: BenchSetting,
    builds: Mapping[str, Callable[[], nn.Module]],
    formats: Sequence[str],
    shape: tuple[int, ...],
    *,
    compiled: bool = False,
) -> Iterator[ModeMeasurement]:
    """Yield the measurement of inference, then of training, each with its own fastest build and memory format.

    If training does not fit, inference has been yielded. A few calls choose and other calls are timed, so that the
    choice does not bias the time. All of it shares the setting's time budget; compilation does not count.
    """
    budget = TimeBudget(setting.seconds)
    cases: dict[tuple[str, str], TimedModule] = {}

    def probe(mode: str, build: str, memory_format: str) -> float:
        key = build, memory_format
        if key not in cases:
            cases[key] = TimedModule(setting, builds[build], shape, memory_format=memory_format, compiled=compiled)
        with budget.excused() if compiled else contextlib.nullcontext():
            cases[key].warm(mode)
        return cases[key].probe(mode)

    try:
        for mode in MODES:
            best, ms = find_fastest(builds, formats, lambda build, layout, mode=mode: probe(mode, build, layout))  # type: ignore[misc]
            case = cases[best]
            peak = case.peak(mode)
            samples = case.samples(mode, setting.samples(ms, budget.left(BUDGET_SHARES[mode])), calls_per_sample(ms))
            yield ModeMeasurement(mode, *best, Timing.of(samples), len(samples), calls_per_sample(ms), peak)
    finally:
        if compiled:
            torch.compiler.reset()  # torch stops compiling a class after eight recompilations


def find_fastest(
    builds: Mapping[str, object], formats: Sequence[str], probe: Callable[[str, str], float]
) -> tuple[tuple[str, str], float]:
    """Return the build and format with the shortest probe, and its time; raise the first failure if all fail."""
    probed: dict[tuple[str, str], float] = {}
    failures: list[Exception] = []
    for build in builds:
        for layout in formats:
            if probed.get((build, formats[0]), 0.0) > LONG_MS:  # the memory format matters little for long calls
                break
            try:
                probed[build, layout] = probe(build, layout)
            except (HamburgerError, ArithmeticError, RuntimeError) as failure:
                probed[build, layout] = math.inf
                failures.append(failure.with_traceback(None))  # a traceback would keep tensors alive
    best = min(probed, key=lambda key: probed[key])
    if math.isinf(probed[best]):
        raise failures[0]
    return best, probed[best]
