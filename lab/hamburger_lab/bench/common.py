"""Small helpers that several benchmarks share."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from hamburger.kernels.dispatch import BACKEND_VARIABLE


class GateError(ArithmeticError):
    """An answer that is wrong in this precision, or differs from the rival's: its time says nothing."""


# ----------------------------------------------------------------------------------------------------------------------
# Which program the hams of a measurement were told to take.


def requested_backend() -> str:
    """What the environment says for the whole process: `auto`, where it says nothing."""
    return os.environ.get(BACKEND_VARIABLE, "auto")


# ----------------------------------------------------------------------------------------------------------------------
# How time grows with size.


def growth_exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The p of time ~ size^p: the slope of the least-squares line through the logarithms. NaN below 2 sizes."""
    if len(set(sizes)) < 2:
        return math.nan
    u, v = [math.log(size) for size in sizes], [math.log(t) for t in times]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    covariance = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return covariance / sum((a - mean_u) ** 2 for a in u)


def format_last_exponent(figures: Mapping[int, float | None]) -> str:
    """The exponent between the two largest sizes that have a figure, to read; empty below two of them.

    Small sizes are left out: what a launch costs there would hide how the work grows.
    """
    found = {n: figure for n, figure in figures.items() if figure}
    ends = sorted(found)[-2:]
    return f"{growth_exponent(ends, [found[n] for n in ends]):.2f}" if len(ends) == 2 else ""
