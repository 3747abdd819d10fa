"""Rules that turn rows into verdicts, the same for every claim.

`rules.md` states them for the reader of the documents, with the history of their revisions.

Multiple comparisons: where a claim has s data sets, any of which may confirm or refute it, each is held to a level of
1 - 5 % / s. Where it asks for m comparisons at once, all of them must be confirmed, which needs no correction; but one
of them alone refutes the claim, so that one is held to 1 - 5 % / (s m).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hamburger.report.study import LEVEL, PairedDifference, compare_paired, half_width, has_collapsed
from hamburger_lab.ablations.grids import shared_training_name
from hamburger_lab.claims.base import (
    CONFIRMED,
    INCONCLUSIVE,
    MAX_LISTED,
    NOT_CONFIRMED,
    Finding,
    Trial,
    Verdict,
    combine_trials,
)
from hamburger_lab.rows import Results, Row, cell_name, is_generated, score_settings, values_by_seed

MARGIN = 0.5  # points of mIoU from which a difference matters
MIN_RATIO = 1.05  # a smaller ratio does not matter, however certain

Interval = tuple[float, float] | None
# (interval that confirms, wider interval that refutes) -> outcome
Rule = Callable[[Interval, Interval], str]
Series = Mapping[int, float]  # by seed


def beats(confirming: Interval, refuting: Interval, *, least: float = MARGIN) -> str:
    """A is better than B: the interval of A - B is above 0. Refuted if it excludes any gain of `least`."""
    return exceeds(confirming, refuting, limit=0.0, least=least)


def is_at_least(confirming: Interval, refuting: Interval, *, least: float = 0.0) -> str:
    """A is as good as B or better: a loss of MARGIN is excluded. Refuted if the interval ends below `least`."""
    return exceeds(confirming, refuting, limit=-MARGIN, least=least)


def beats_paper_gain(paper: float) -> Rule:
    """Return `beats` for a gain that the paper prints: an effect as small as the paper's refutes nothing."""
    return partial(beats, least=min(MARGIN, paper))


def keeps_paper_difference(paper: float) -> Rule:
    """Return `is_at_least` for a difference that the paper prints, which may be a small loss."""
    return partial(is_at_least, least=min(0.0, paper))


def exceeds(confirming: Interval, refuting: Interval, *, limit: float, least: float | None = None) -> str:
    """The interval is above `limit`. Refuted if the wider one ends below `least`, by default the limit."""
    if confirming is None or refuting is None:
        return INCONCLUSIVE
    least = limit if least is None else least
    return CONFIRMED if confirming[0] > limit else NOT_CONFIRMED if refuting[1] < least else INCONCLUSIVE


def is_level(confirming: Interval, refuting: Interval) -> str:
    """A and B differ by less than MARGIN. Refuted if the wider interval excludes 0."""
    if confirming is None or refuting is None:
        return INCONCLUSIVE
    if confirming[0] > -MARGIN and confirming[1] < MARGIN:
        return CONFIRMED
    return NOT_CONFIRMED if refuting[0] > 0 or refuting[1] < 0 else INCONCLUSIVE


def widen_interval(difference: PairedDifference, comparisons: int) -> Interval:
    """Return the interval corrected for that many comparisons (Bonferroni), None without one."""
    if difference.interval is None or difference.deviation is None:
        return None
    half = half_width(difference, 1 - (1 - LEVEL) / comparisons)
    return difference.mean - half, difference.mean + half


@dataclass(frozen=True)
class RunComparison:
    """The comparisons of a claim on one set of runs: name -> difference over seeds, None without rows."""

    rows: Sequence[Row]
    differences: dict[str, PairedDifference | None]
    cells: tuple[str, ...] = ()  # the compared cells
    show_settings: bool = False  # another set has the same recipe and number of steps

    @property
    def key(self) -> tuple[str, int, tuple[str, ...]]:
        """Recipe, steps and settings: equal for repeated runs."""
        first = self.rows[0]
        return str(first["recipe"]), first["steps"], score_settings(first)

    @property
    def decides(self) -> bool:
        return not is_generated(self.rows[0])

    @property
    def where(self) -> str:
        first = self.rows[0]
        hardware = " and ".join(dict.fromkeys(str(row["hardware"]) for row in self.rows))
        settings = f" ({' '.join(self.key[2]) or 'as the recipe says'})" if self.show_settings else ""
        return f"{first['recipe']}{settings}, {first['steps']} steps, {hardware}"

    @property
    def trainings(self) -> tuple[tuple[str, str], ...]:
        """Trainings that several grids share: (label, name of the cell here)."""
        recipe, steps, settings = self.key
        where = ", ".join((recipe, f"{steps} steps", *settings))
        cells = [
            (cell_name(row), shared_training_name(row.get("overrides") or (), row.get("settings"))) for row in self.rows
        ]
        used = dict.fromkeys((f"{name} of {where}", cell) for cell, name in cells if name and cell in self.cells)
        return tuple(used)

    @property
    def sizes(self) -> list[str]:
        """A note on the numbers of parameters, where rows state them and they differ."""
        rows = [row for row in self.rows if row.get("parameters")]
        names = {cell_name(row): row["parameters"] for row in rows}
        counts = {cell: names[cell] for cell in self.cells if cell in names}
        if len(set(counts.values())) < 2:
            return []
        common, times = Counter(counts.values()).most_common(1)[0]
        shown = {cell: count for cell, count in counts.items() if times <= MAX_LISTED or count != common}
        texts = [f"{cell} {_millions(count)}" for cell, count in shown.items()]
        if len(shown) < len(counts):
            texts.append(f"the others {_millions(common)}")
        return [f"parameters: {', '.join(texts)}"]

    @property
    def collapses(self) -> list[str]:
        """Notes on cells whose networks predict only one class."""
        notes = []
        for cell in self.cells:
            collapsed = [has_collapsed(row) for row in self.rows if cell_name(row) == cell]
            notes += [f"{cell} predicts one class only with {sum(collapsed)} of {len(collapsed)} seeds"] * any(
                collapsed
            )
        return notes

    @property
    def available(self) -> list[PairedDifference]:
        return [difference for difference in self.differences.values() if difference is not None]

    @property
    def weight(self) -> tuple[int, int]:
        """Amount of evidence: comparisons that have rows, then seeds."""
        return len(self.available), min(difference.n for difference in self.available)


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f}M" if count >= 1e6 else f"{count / 1e3:.1f}k"


@dataclass(frozen=True)
class NumberFormat:
    """How to print the numbers of a claim. Ratios are means of logarithms; `value` converts them back."""

    unit: str = "points"
    template: str = "{:+.2f}"
    value: Callable[[float], float] = field(default=float)

    def interval(self, interval: Interval) -> Interval:
        return None if interval is None else (self.value(interval[0]), self.value(interval[1]))


RATIO_FORMAT = NumberFormat("times", "{:.2f}", math.exp)


def drop_repeated_runs(cases: Sequence[RunComparison]) -> list[RunComparison]:
    """Return each experiment once: of repeated ones the file with more comparisons, then seeds.

    Runs of the same seeds twice, in a grid and in a comparison of contexts, are not new evidence.
    """
    best: dict[tuple[str, int, tuple[str, ...]], RunComparison] = {}
    for case in (case for case in cases if case.available):
        if case.key not in best or case.weight > best[case.key].weight:
            best[case.key] = case
    sets_of_recipe = Counter(key[:2] for key in best)  # recipe and steps
    return [replace(case, show_settings=sets_of_recipe[key[:2]] > 1) for key, case in best.items()]


def judge_comparisons(
    cases: Sequence[RunComparison],
    rule: Rule,
    number_format: NumberFormat = NumberFormat(),
    *,
    limit: float = 0.0,
    trained: bool = True,
) -> Verdict:
    """Return the verdict over all sets of runs, a trial each.

    `limit` is marked in figures. `trained` is False for what does not depend on the length of a training.
    """
    cases = drop_repeated_runs(cases)
    trials = []
    for case in cases:
        sets = sum(other.decides == case.decides for other in cases)
        findings = []
        for label, difference in case.differences.items():
            if difference is None:
                continue
            confirming = widen_interval(difference, sets)
            refuting = widen_interval(difference, sets * len(case.differences))
            outcome = rule(confirming, refuting)
            deciding = refuting if outcome == NOT_CONFIRMED else confirming
            findings.append(
                Finding(
                    label,
                    number_format.value(difference.mean),
                    number_format.interval(difference.interval),
                    difference.n,
                    outcome,
                    number_format.unit,
                    number_format.template,
                    limit=number_format.value(limit),
                    refuting=number_format.interval(refuting),
                    detectable=None if deciding is None else number_format.value((deciding[1] - deciding[0]) / 2),
                )
            )
        missing = tuple(label for label, difference in case.differences.items() if difference is None)
        seeds = len({row["seed"] for row in case.rows})
        fewer = sum(difference.n < seeds for difference in case.available)
        notes = [f"{fewer} of {len(case.available)} lack a seed that other cells have"] if fewer else []
        collapses = case.collapses if number_format.unit == "points" else []  # memory does not depend on the score
        trials.append(
            Trial(
                case.where,
                tuple(findings),
                decides=case.decides,
                missing=missing,
                note="; ".join([*notes, *collapses, *case.sizes]),
                trainings=case.trainings,
                collapsed=bool(collapses),
                steps=case.key[1] if trained else None,
            )
        )
    return combine_trials(trials)


@dataclass(frozen=True)
class CellPair:
    """Two cells to compare; `theirs` may be several names, of which the first in a file counts."""

    ours: str
    theirs: str | tuple[str, ...]

    def rivals(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs

    def in_rows(self, rows: list[Row], key: str) -> tuple[str, str]:
        """Return the two names as these rows have them."""
        known = {row.get(key) for row in rows}
        return self.ours, next((name for name in self.rivals() if name in known), self.rivals()[0])


@dataclass(frozen=True)
class RowSource:
    """Files whose name begins with `prefix`, whose `key` names the cell, and the pairs to compare in them."""

    prefix: str
    pairs: tuple[CellPair, ...]
    key: str = "cell"

    def cases(
        self, results: Results, read: Callable[[list[Row], str, str], Series], sign: str = "-"
    ) -> list[RunComparison]:
        """Return the comparisons of every file; `read` maps (rows, key, name of a cell) to values by seed."""
        comparisons = []
        for rows in results.with_prefix(self.prefix).values():
            names = [pair.in_rows(rows, self.key) for pair in self.pairs]
            differences = {
                f"{ours} {sign} {theirs}": compare_paired(read(rows, self.key, ours), read(rows, self.key, theirs))
                for ours, theirs in names
            }
            comparisons.append(
                RunComparison(rows, differences, tuple(dict.fromkeys(name for pair in names for name in pair)))
            )
        return comparisons


def judge_miou(results: Results, sources: Sequence[RowSource], rule: Rule) -> Verdict:
    """Judge the differences in mIoU of all pairs on every set of runs."""
    return judge_comparisons([case for source in sources for case in source.cases(results, miou_by_seed)], rule)


def judge_ratios(results: Results, sources: Sequence[RowSource], *, field: str, device: str) -> Verdict:
    """Judge whether ours over theirs is above MIN_RATIO, in files of that device."""
    cases = [case for source in sources for case in source.cases(results, partial(_logarithms, field=field), "/")]
    limit = math.log(MIN_RATIO)
    here = [case for case in cases if case.rows[0]["device"] == device]
    rule = partial(exceeds, limit=limit)
    return judge_comparisons(here, rule, RATIO_FORMAT, limit=limit, trained=field != "peak_mb")


def miou_by_seed(rows: list[Row], key: str, name: str) -> Series:
    """mIoU of a cell, in points."""
    return values_by_seed(rows, key, name, "miou", 100)


def _logarithms(rows: list[Row], key: str, name: str, *, field: str) -> Series:
    return {seed: math.log(value) for seed, value in values_by_seed(rows, key, name, field, 1).items()}


# -- the rules in words, for the documents and the page ----------------------------------------------------------------

VERDICT_TABLE = (
    ("the claim says", "confirmed", "not confirmed"),
    (
        "A beats B",
        "the interval of A - B begins above 0",
        f"it ends below {MARGIN:g}, or below the paper's own gain if that is smaller",
    ),
    (
        "A is as good as B, or better",
        f"it begins above -{MARGIN:g}: a loss that matters is excluded",
        "it ends below 0, or below the paper's own loss where it prints one",
    ),
    (
        "A and B are level",
        f"it is between -{MARGIN:g} and {MARGIN:g}",
        "it excludes 0 and is not between them",
    ),
    (
        "A needs more than B",
        f"the interval of the mean ratio begins above {MIN_RATIO:g}",
        f"it ends below {MIN_RATIO:g}",
    ),
)
_PARAGRAPHS = Path(__file__).with_name("rules.md").read_text(encoding="utf-8").split("\n\n")
RULES = tuple(" ".join(paragraph.split()) for paragraph in _PARAGRAPHS[1:])  # without the title
