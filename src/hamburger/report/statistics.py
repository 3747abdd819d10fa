"""Mean, standard deviation and Student's t interval of scores over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEVEL = 0.95  # confidence of every interval that is not asked for at another level


@dataclass(frozen=True)
class SampleSummary:
    """Mean and sample standard deviation (n - 1) of `n` values; `deviation` is None for one value."""

    mean: float
    deviation: float | None
    n: int


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference paired by seed, with its 95 % interval.

    `interval` is None below three pairs: for two, it would reach 12.7 standard errors each way.
    """

    mean: float
    deviation: float | None
    n: int
    interval: tuple[float, float] | None

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def summarise(values: Sequence[float]) -> SampleSummary:
    """Return mean and sample standard deviation of `values`, which must not be empty."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return SampleSummary(mean, None, 1)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return SampleSummary(mean, math.sqrt(squares / (len(values) - 1)), len(values))


def compare_paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> PairedDifference | None:
    """Return `ours` minus `theirs` (seed to score) over the seeds both have, or None if they share none."""
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    summary = summarise([ours[seed] - theirs[seed] for seed in seeds])
    if summary.n < 3:
        return PairedDifference(summary.mean, summary.deviation, summary.n, None)
    reach = half_width(summary)
    return PairedDifference(summary.mean, summary.deviation, summary.n, (summary.mean - reach, summary.mean + reach))


def half_width(summary: SampleSummary | PairedDifference, level: float = LEVEL) -> float:
    """Return half the width of Student's t interval of the mean at confidence `level`; needs two values or more."""
    if summary.deviation is None:
        raise ValueError(f"half_width: needs at least two values (got {summary.n})")
    return t_quantile((1 + level) / 2, summary.n - 1) * summary.deviation / math.sqrt(summary.n)


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution with `degrees` degrees of freedom."""
    from scipy.stats import t  # slow to import

    return float(t.ppf(probability, degrees))
