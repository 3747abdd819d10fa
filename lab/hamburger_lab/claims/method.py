"""How rows become a word. The rules are the same for every claim.

Scores are mIoU in points, differences are paired by seed, intervals are Student's at 95 %; below three shared seeds
there is none, and nothing is decided. MARGIN is what a difference must be worth to matter: half a point, by our choice.
The paper builds sentences on less ("warm start benefits CD" is +0.2): a claim with a smaller effect in the paper is
refuted only by an interval that leaves out that effect.

MARGIN and the rules were written before any score of the ablations was seen. They were revised after the ablations on
generated scenes, made on a processor, and before any ablation on a card, in this: propositions are held to solves that
meet their assumption; Eq. 13 is read in two ways; flat times and missing measurements confirm nothing; runs are told
apart by steps and settings; the paper's effect is the least that is asked for where it is below MARGIN; a ratio
counts from COUNTS on, silent channels from one on. Claims added then were written with those rows known.

Chances to be wrong add up, and are paid for: where a claim has s data sets, any of which may confirm or refute it, each
is held to a level of 1 - 5 % / s. Where it asks for m comparisons at once, all of them must be confirmed, which needs
no more; but one of them alone refutes it, so that this one is held to 1 - 5 % / (s m).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hamburger.report.statistics import LEVEL, Difference, half_width, paired
from hamburger_lab.ablations.grids import common
from hamburger_lab.claims.base import CONFIRMED, INCONCLUSIVE, MOST, NOT_CONFIRMED, Finding, Trial, Verdict, combined
from hamburger_lab.claims.results import Results, Row, by_seed, cell_of, collapsed, generated, settings

MARGIN = 0.5
COUNTS = 1.05  # a ratio below is next to none, however sure

Interval = tuple[float, float] | None
# of the interval that confirms, and of the wider one, which refutes
Rule = Callable[[Interval, Interval], str]
Series = Mapping[int, float]  # by seed


def beats(usual: Interval, wide: Interval, *, least: float = MARGIN) -> str:
    """A is better than B: the interval of A - B lies above 0. Refuted where it leaves out any gain of `least`."""
    return exceeds(usual, wide, limit=0.0, least=least)


def at_least(usual: Interval, wide: Interval, *, least: float = 0.0) -> str:
    """A is as good as B or better: a loss that matters is left out. Refuted where A is surely worse than by `least`."""
    return exceeds(usual, wide, limit=-MARGIN, least=least)


def beating(paper: float) -> Rule:
    """`beats` where the paper prints that gain: what the paper itself found refutes nothing."""
    return partial(beats, least=min(MARGIN, paper))


def keeping(paper: float) -> Rule:
    """`at_least` where the paper prints that difference, which may be a small loss."""
    return partial(at_least, least=min(0.0, paper))


def exceeds(usual: Interval, wide: Interval, *, limit: float, least: float | None = None) -> str:
    """Above the limit. Refuted where it is surely below what would be `least`; by default the limit itself."""
    if usual is None or wide is None:
        return INCONCLUSIVE
    least = limit if least is None else least
    return CONFIRMED if usual[0] > limit else NOT_CONFIRMED if wide[1] < least else INCONCLUSIVE


def level(usual: Interval, wide: Interval) -> str:
    """A and B are the same for practical purposes. Refuted where one of them is surely better."""
    if usual is None or wide is None:
        return INCONCLUSIVE
    if usual[0] > -MARGIN and usual[1] < MARGIN:
        return CONFIRMED
    return NOT_CONFIRMED if wide[0] > 0 or wide[1] < 0 else INCONCLUSIVE


def widened(found: Difference, chances: int) -> Interval:
    """The interval where so many may err, so that all of them hold their means in 95 of 100 studies."""
    if found.interval is None or found.deviation is None:
        return None
    reach = half_width(found, 1 - (1 - LEVEL) / chances)
    return found.mean - reach, found.mean + reach


@dataclass(frozen=True)
class Case:
    """One set of runs, and what a claim asks of it: differences over seeds by their names, None without rows."""

    rows: Sequence[Row]
    found: dict[str, Difference | None]
    cells: tuple[str, ...] = ()  # that the comparisons are of
    told_apart: bool = False  # by its settings, where another set has the same recipe and as many steps

    @property
    def key(self) -> tuple[str, int, tuple[str, ...]]:
        """What makes runs of the same seeds the same runs."""
        first = self.rows[0]
        return str(first["recipe"]), first["steps"], settings(first)

    @property
    def decides(self) -> bool:
        return not generated(self.rows[0])

    @property
    def where(self) -> str:
        first = self.rows[0]
        hardware = " and ".join(dict.fromkeys(str(row["hardware"]) for row in self.rows))
        told = f" ({' '.join(self.key[2]) or 'as the recipe says'})" if self.told_apart else ""
        return f"{first['recipe']}{told}, {first['steps']} steps, {hardware}"

    @property
    def rests(self) -> tuple[tuple[str, str], ...]:
        """Trainings that several grids know under one name, with the names they have here."""
        recipe, steps, told = self.key
        where = ", ".join((recipe, f"{steps} steps", *told))
        cells = [(cell_of(row), common(row.get("overrides") or (), row.get("settings"))) for row in self.rows]
        used = dict.fromkeys((f"{name} of {where}", cell) for cell, name in cells if name and cell in self.cells)
        return tuple(used)

    @property
    def sizes(self) -> list[str]:
        """Parameters of the networks that are compared, where rows tell them and they differ."""
        rows = [row for row in self.rows if row.get("parameters")]
        names = {cell_of(row): row["parameters"] for row in rows}
        had = {cell: names[cell] for cell in self.cells if cell in names}
        if len(set(had.values())) < 2:
            return []
        usual, times = Counter(had.values()).most_common(1)[0]
        few = {cell: count for cell, count in had.items() if times <= MOST or count != usual}
        said = [*(f"{cell} {_millions(count)}" for cell, count in few.items())]
        return [f"parameters: {', '.join(said + [f'the others {_millions(usual)}'] * (len(few) < len(had)))}"]

    @property
    def collapses(self) -> list[str]:
        """Cells whose networks answer one class alone: what they lose is not the size of an effect."""
        said = []
        for cell in self.cells:
            had = [collapsed(row) for row in self.rows if cell_of(row) == cell]
            said += [f"{cell} answers one class alone with {sum(had)} of {len(had)} seeds"] * any(had)
        return said

    @property
    def told(self) -> list[Difference]:
        return [found for found in self.found.values() if found is not None]

    @property
    def weight(self) -> tuple[int, int]:
        """How much evidence it is: comparisons that have rows, then seeds."""
        return len(self.told), min(found.n for found in self.told)


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f}M" if count >= 1e6 else f"{count / 1e3:.1f}k"


@dataclass(frozen=True)
class Shown:
    """How a claim's numbers read. Ratios are means of logarithms, which take no side."""

    unit: str = "points"
    form: str = "{:+.2f}"
    value: Callable[[float], float] = field(default=float)


TIMES = Shown("times", "{:.2f}", math.exp)


def once(cases: Sequence[Case]) -> list[Case]:
    """Each experiment once: of files with one recipe, steps and settings that with more comparisons, then seeds.

    Runs of the same seeds twice, in a grid and in a comparison of contexts, are no new evidence.
    """
    best: dict[tuple[str, int, tuple[str, ...]], Case] = {}
    for case in (case for case in cases if case.told):
        if case.key not in best or case.weight > best[case.key].weight:
            best[case.key] = case
    alike = Counter(key[:2] for key in best)
    return [replace(case, told_apart=alike[key[:2]] > 1) for key, case in best.items()]


def judge(
    cases: Sequence[Case],
    rule: Rule,
    shown: Shown = Shown(),
    *,
    limit: float = 0.0,
) -> Verdict:
    """One trial for every set of runs that has anything to say, and a word for all. `limit` is what figures mark."""
    cases = once(cases)
    trials = []
    for case in cases:
        sets = sum(other.decides == case.decides for other in cases)
        findings = []
        for what, found in case.found.items():
            if found is None:
                continue
            usual, wide = widened(found, sets), widened(found, sets * len(case.found))
            word = rule(usual, wide)
            decides = wide if word == NOT_CONFIRMED else usual
            far = None if wide is None else (shown.value(wide[0]), shown.value(wide[1]))
            tells = None if decides is None else shown.value((decides[1] - decides[0]) / 2)
            ends = None if found.interval is None else (shown.value(found.interval[0]), shown.value(found.interval[1]))
            about = (shown.value(found.mean), ends, found.n, word, shown.unit, shown.form)
            findings.append(Finding(what, *about, limit=shown.value(limit), wide=far, tells=tells))
        missing = tuple(what for what, found in case.found.items() if found is None)
        seeds = len({row["seed"] for row in case.rows})
        fewer = sum(found.n < seeds for found in case.told)
        notes = [f"{fewer} of {len(case.told)} lack a seed that other cells have"] if fewer else []
        collapses = case.collapses if shown.unit == "points" else []  # a score; memory is the same
        trials.append(
            Trial(
                case.where,
                tuple(findings),
                decides=case.decides,
                missing=missing,
                note="; ".join([*notes, *collapses, *case.sizes]),
                rests=case.rests,
                collapsed=bool(collapses),
            )
        )
    return combined(trials)


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

    def cases(self, results: Results, read: Callable[[list[Row], str, str], Series], sign: str = "-") -> list[Case]:
        """One for every file; `read` takes the rows, the key and the name of a cell."""
        made = []
        for rows in results.beginning(self.prefix).values():
            names = [pair.in_rows(rows, self.key) for pair in self.pairs]
            found = {
                f"{ours} {sign} {theirs}": paired(read(rows, self.key, ours), read(rows, self.key, theirs))
                for ours, theirs in names
            }
            made.append(Case(rows, found, tuple(dict.fromkeys(name for pair in names for name in pair))))
        return made


def compare(results: Results, sources: Sequence[Source], rule: Rule) -> Verdict:
    """mIoU of every pair on every set of runs."""
    return judge([case for source in sources for case in source.cases(results, points)], rule)


def ratios(results: Results, sources: Sequence[Source], *, field: str, device: str) -> Verdict:
    """Ours over theirs is above 1 by what counts, in files of that device."""
    cases = [case for source in sources for case in source.cases(results, partial(_logarithms, field=field), "/")]
    limit = math.log(COUNTS)
    here = [case for case in cases if case.rows[0]["device"] == device]
    return judge(here, partial(exceeds, limit=limit), TIMES, limit=limit)


def points(rows: list[Row], key: str, name: str) -> Series:
    """mIoU of a cell, in points."""
    return by_seed(rows, key, name, "miou", 100)


def _logarithms(rows: list[Row], key: str, name: str, *, field: str) -> Series:
    return {seed: math.log(value) for seed, value in by_seed(rows, key, name, field, 1).items()}
