"""How time grows with size."""

from __future__ import annotations

import math
from collections.abc import Sequence


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The p of time ~ size^p: the slope of the least-squares line through the logarithms. NaN below 2 sizes."""
    if len(set(sizes)) < 2:
        return math.nan
    u, v = [math.log(size) for size in sizes], [math.log(t) for t in times]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    covariance = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return covariance / sum((a - mean_u) ** 2 for a in u)
