"""Measure the fastest of several ways to build and lay out a module."""

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
# Up to which part of a row's seconds a mode may take samples. Training comes last and has what is left: its calls take
# about three times as long.
BUDGET_SHARES = {"infer": 0.4, "train": 1.0}


@dataclass(frozen=True)
class ModeMeasurement:
    """The measurement of one mode of a module, and how it was built."""

    mode: str
    way: str
    memory_format: str
    timing: Timing
    repeats: int
    block: int  # calls in one sample
    mb: float


def measure_fastest(
    setting: BenchSetting,
    ways: Mapping[str, Callable[[], nn.Module]],
    formats: Sequence[str],
    shape: tuple[int, ...],
    *,
    compiled: bool = False,
) -> Iterator[ModeMeasurement]:
    """Inference, then training: each by its own fastest way, and where only the second does not fit, the first is kept.

    A few calls choose and many others are timed, so that the luckier of two equals gains nothing by it. All of it is to
    take the setting's seconds; a compilation is excused, and the least samples are taken whatever is left.
    """
    budget = TimeBudget(setting.seconds)
    cases: dict[tuple[str, str], TimedModule] = {}

    def probe(mode: str, way: str, memory_format: str) -> float:
        key = way, memory_format
        if key not in cases:
            cases[key] = TimedModule(setting, ways[way], shape, memory_format=memory_format, compiled=compiled)
        with budget.excused() if compiled else contextlib.nullcontext():
            cases[key].warm(mode)
        return cases[key].probe(mode)

    try:
        for mode in MODES:
            best, ms = find_fastest(ways, formats, lambda way, layout, mode=mode: probe(mode, way, layout))  # type: ignore[misc]
            case = cases[best]
            peak = case.peak(mode)
            samples = case.samples(mode, setting.samples(ms, budget.left(BUDGET_SHARES[mode])), calls_per_sample(ms))
            yield ModeMeasurement(mode, *best, Timing.of(samples), len(samples), calls_per_sample(ms), peak)
    finally:
        if compiled:
            torch.compiler.reset()  # after eight sizes and modes of one class it would run the next uncompiled


def find_fastest(
    ways: Mapping[str, object], formats: Sequence[str], probe: Callable[[str, str], float]
) -> tuple[tuple[str, str], float]:
    """The way and format of the shortest probe. One that fails is out; where all fail, the first failure is raised."""
    probed: dict[tuple[str, str], float] = {}
    failures: list[Exception] = []
    for way in ways:
        for layout in formats:
            if probed.get((way, formats[0]), 0.0) > LONG_MS:  # long calls: a layout is a small part of them
                break
            try:
                probed[way, layout] = probe(way, layout)
            except (HamburgerError, ArithmeticError, RuntimeError) as failure:
                probed[way, layout] = math.inf
                failures.append(failure.with_traceback(None))  # which would keep the tensors of its frames
    best = min(probed, key=lambda key: probed[key])
    if math.isinf(probed[best]):
        raise failures[0]
    return best, probed[best]
