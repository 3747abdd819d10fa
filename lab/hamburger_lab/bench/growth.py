"""How time grows with size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The p of time ~ size^p: the slope of the least-squares line through the logarithms. NaN below 2 sizes."""
    if len(set(sizes)) < 2:
        return math.nan
    u, v = [math.log(size) for size in sizes], [math.log(t) for t in times]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    covariance = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return covariance / sum((a - mean_u) ** 2 for a in u)


def at_the_end(figures: Mapping[int, float | None]) -> str:
    """The exponent between the two largest sizes that have a figure, to read; empty below two of them.

    Small sizes are left out: what a launch costs there would hide how the work grows.
    """
    found = {n: figure for n, figure in figures.items() if figure}
    ends = sorted(found)[-2:]
    return f"{exponent(ends, [found[n] for n in ends]):.2f}" if len(ends) == 2 else ""
