"""How rows become a word. The rules are the same for every claim, and older than any look at the ablations.

Scores are mIoU in points, differences are paired by seed, intervals are Student's at 95 %; below three shared seeds
there is none, and nothing is decided. MARGIN is what a difference must be worth to matter: half a point, about the
smallest difference that the paper builds a sentence on. Where a claim asks for m comparisons at once, all of them must
be confirmed, each at 95 %; but one of them alone refutes it, so that this one is held to a level of 1 - 5 % / m.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hamburger.analysis.claims.base import (
    CONFIRMED,
    INCONCLUSIVE,
    NOT_CONFIRMED,
    Finding,
    Trial,
    Verdict,
    combined,
)
from hamburger.analysis.claims.results import Results, Row, by_seed
from hamburger.analysis.report.statistics import LEVEL, Difference, paired, t_quantile

MARGIN = 0.5
GENERATED = "patchwork"  # recipes that begin so are scenes of our own

Interval = tuple[float, float] | None
# of the interval at 95 %, which confirms, and of the wider one, which refutes
Rule = Callable[[Interval, Interval], str]


def beats(usual: Interval, wide: Interval) -> str:
    """A is better than B: the interval of A - B lies above 0. Refuted where it leaves out any gain that matters."""
    if usual is None or wide is None:
        return INCONCLUSIVE
    return CONFIRMED if usual[0] > 0 else NOT_CONFIRMED if wide[1] < MARGIN else INCONCLUSIVE


def at_least(usual: Interval, wide: Interval) -> str:
    """A is as good as B or better: a loss that matters is left out. Refuted where A is surely worse."""
    if usual is None or wide is None:
        return INCONCLUSIVE
    return CONFIRMED if usual[0] > -MARGIN else NOT_CONFIRMED if wide[1] < 0 else INCONCLUSIVE


def level(usual: Interval, wide: Interval) -> str:
    """A and B are the same for practical purposes. Refuted where one of them is surely better."""
    if usual is None or wide is None:
        return INCONCLUSIVE
    if usual[0] > -MARGIN and usual[1] < MARGIN:
        return CONFIRMED
    return NOT_CONFIRMED if wide[0] > 0 or wide[1] < 0 else INCONCLUSIVE


def widened(found: Difference, comparisons: int) -> Interval:
    """The interval of one of several comparisons, so that all of them hold their means in 95 of 100 studies."""
    if found.interval is None or found.deviation is None:
        return None
    share = 1 - (1 - LEVEL) / comparisons / 2
    reach = t_quantile(share, found.n - 1) * found.deviation / math.sqrt(found.n)
    return found.mean - reach, found.mean + reach


@dataclass(frozen=True)
class Pair:
    """Ours against theirs; of several names for theirs the first that a file has."""

    ours: str
    theirs: str | tuple[str, ...]

    def rivals(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs

    def in_rows(self, rows: list[Row], key: str) -> tuple[str, str]:
        """The two names as these rows have them."""
        known = {row.get(key) for row in rows}
        return self.ours, next((name for name in self.rivals() if name in known), self.rivals()[0])


@dataclass(frozen=True)
class Source:
    """Files whose name begins with `prefix`, whose `key` names the cell, and the pairs to compare in them."""

    prefix: str
    pairs: tuple[Pair, ...]
    key: str = "cell"


def compare(results: Results, sources: Sequence[Source], rule: Rule) -> Verdict:
    """mIoU of every pair on every set of runs.

    Where two files speak of one recipe, the one with more findings counts, then the one with more seeds: runs of the
    same seeds twice are no new evidence.
    """
    best: dict[str, Trial] = {}
    for source in sources:
        for rows in results.beginning(source.prefix).values():
            trial = _trial(rows, source, partial(_points, rule=rule, comparisons=len(source.pairs)))
            recipe = rows[0]["recipe"]
            if trial is not None and (recipe not in best or _weight(trial) > _weight(best[recipe])):
                best[recipe] = trial
    return combined(list(best.values()))


def ratios(results: Results, sources: Sequence[Source], *, field: str, device: str) -> Verdict:
    """Ours over theirs is above 1: the interval is that of the mean logarithm, which takes no side."""
    trials = []
    for source in sources:
        for rows in results.beginning(source.prefix).values():
            rows = [row for row in rows if row["device"] == device]
            trial = _trial(rows, source, partial(_ratio, field=field, comparisons=len(source.pairs))) if rows else None
            trials += [] if trial is None else [trial]
    return combined(trials)


def _trial(rows: list[Row], source: Source, find: Callable[[list[Row], str, str, str], Finding | None]) -> Trial | None:
    findings, missing = [], []
    for pair in source.pairs:
        ours, theirs = pair.in_rows(rows, source.key)
        found = find(rows, source.key, ours, theirs)
        if found is None:
            missing.append(f"{ours} - {theirs}")
        else:
            findings.append(found)
    if not findings:
        return None
    first = rows[0]
    return Trial(
        f"{first['recipe']}, {first['steps']} steps, {first['hardware']}",
        tuple(findings),
        decides=not first["recipe"].startswith(GENERATED),
        missing=tuple(missing),
    )


def _points(rows: list[Row], key: str, ours: str, theirs: str, rule: Rule, comparisons: int) -> Finding | None:
    found = paired(*(by_seed(rows, key, name, "miou", 100) for name in (ours, theirs)))
    if found is None:
        return None
    word = rule(found.interval, widened(found, comparisons))
    return Finding(f"{ours} - {theirs}", found.mean, found.interval, found.n, word)


def _ratio(rows: list[Row], key: str, ours: str, theirs: str, field: str, comparisons: int) -> Finding | None:
    had = [by_seed(rows, key, name, field, 1) for name in (ours, theirs)]
    found = paired(*({seed: math.log(value) for seed, value in each.items()} for each in had))
    if found is None:
        return None
    interval, word = None, INCONCLUSIVE
    if found.interval is not None:
        low, high = found.interval
        interval = math.exp(low), math.exp(high)
        wide = widened(found, comparisons)
        word = CONFIRMED if low > 0 else NOT_CONFIRMED if wide is not None and wide[1] < 0 else INCONCLUSIVE
    return Finding(f"{ours} / {theirs}", math.exp(found.mean), interval, found.n, word, "times", "{:.2f}")


def _weight(trial: Trial) -> tuple[int, int]:
    return len(trial.findings), min(finding.n for finding in trial.findings)
