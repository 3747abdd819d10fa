"""Mean, spread and Student's interval, in a few lines, so that a report needs no further package."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """`deviation` is the sample standard deviation (n - 1), None for one value."""

    mean: float
    deviation: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Paired over shared seeds. `interval` holds the true mean in 95 of 100 such studies; None below three pairs."""

    mean: float
    deviation: float | None
    n: int
    interval: tuple[float, float] | None

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def summarise(values: Sequence[float]) -> Summary:
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Summary(mean, None, 1)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Summary(mean, math.sqrt(squares / (len(values) - 1)), len(values))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Ours minus theirs over the seeds that both have; None where they share none."""
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    found = summarise([ours[seed] - theirs[seed] for seed in seeds])
    if found.n < 3 or found.deviation is None:  # two pairs: 12.7 standard errors each way
        return Difference(found.mean, found.deviation, found.n, None)
    reach = t_quantile((1 + LEVEL) / 2, found.n - 1) * found.deviation / math.sqrt(found.n)
    return Difference(found.mean, found.deviation, found.n, (found.mean - reach, found.mean + reach))


def t_quantile(share: float, freedom: int) -> float:
    """The value that Student's t stays below with that probability, for 0.5 <= share < 1."""
    low, high = 0.0, 1.0
    while t_below(high, freedom) < share:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, freedom) < share else (low, middle)
        if low == middle == high:
            break
    return (low + high) / 2


def t_below(t: float, freedom: int) -> float:
    """The distribution function for a whole number of degrees of freedom, which is a finite sum of cosines."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine2 = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for i in range(odd, freedom - 1, 2):
        total += term
        term *= cosine2 * (i + 1) / (i + 2)
    within = math.sin(angle) * total
    return 0.5 + ((angle + within) / math.pi if odd else within / 2)
