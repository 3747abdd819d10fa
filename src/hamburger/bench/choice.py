"""Of several ways to build and lay out a module, the fastest, measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from hamburger.bench.case import LONG_MS, Case, Setting, block
from hamburger.bench.timing import Timing
from hamburger.errors import HamburgerError

MODES = ("infer", "train")


@dataclass(frozen=True)
class Measured:
    """One mode of one module, and by which way."""

    mode: str
    way: str
    memory_format: str
    timing: Timing
    repeats: int
    block: int  # calls in one sample
    mb: float


def measure(
    setting: Setting,
    ways: Mapping[str, Callable[[], nn.Module]],
    formats: Sequence[str],
    shape: tuple[int, ...],
    *,
    compiled: bool = False,
) -> Iterator[Measured]:
    """Inference, then training: each by its own fastest way, and where only the second does not fit, the first is kept.

    A few calls choose and many others are timed, so that the luckier of two equals gains nothing by it.
    """
    cases: dict[tuple[str, str], Case] = {}

    def probe(mode: str, way: str, memory_format: str) -> float:
        key = way, memory_format
        if key not in cases:
            cases[key] = Case(setting, ways[way], shape, memory_format=memory_format, compiled=compiled)
        return cases[key].probe(mode)

    for mode in MODES:
        best, ms = fastest(ways, formats, lambda way, laid, mode=mode: probe(mode, way, laid))  # type: ignore[misc]
        case = cases[best]
        peak, samples = case.peak(mode), case.samples(mode, setting.samples(ms), block(ms))
        yield Measured(mode, *best, Timing.of(samples), len(samples), block(ms), peak)


def fastest(
    ways: Mapping[str, object], formats: Sequence[str], probe: Callable[[str, str], float]
) -> tuple[tuple[str, str], float]:
    """The way and format of the shortest probe. One that fails is out; where all fail, the first failure is raised."""
    found: dict[tuple[str, str], float] = {}
    failures: list[Exception] = []
    for way in ways:
        for laid in formats:
            if found.get((way, formats[0]), 0.0) > LONG_MS:  # long calls: a layout is a small part of them
                break
            try:
                found[way, laid] = probe(way, laid)
            except (HamburgerError, ArithmeticError, RuntimeError) as failure:
                found[way, laid] = math.inf
                failures.append(failure.with_traceback(None))  # which would keep the tensors of its frames
    best = min(found, key=lambda key: found[key])
    if math.isinf(found[best]):
        raise failures[0]
    return best, found[best]
