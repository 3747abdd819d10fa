"""Rules that turn rows into verdicts, the same for every claim.

`RULES`, at the end, states them for the reader of the documents, with the history of their revisions.

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
# (interval that confirms, wider interval that refutes) -> word
Rule = Callable[[Interval, Interval], str]
Series = Mapping[int, float]  # by seed


def beats(usual: Interval, wide: Interval, *, least: float = MARGIN) -> str:
    """A is better than B: the interval of A - B is above 0. Refuted if it excludes any gain of `least`."""
    return exceeds(usual, wide, limit=0.0, least=least)


def is_at_least(usual: Interval, wide: Interval, *, least: float = 0.0) -> str:
    """A is as good as B or better: a loss of MARGIN is excluded. Refuted if the interval ends below `least`."""
    return exceeds(usual, wide, limit=-MARGIN, least=least)


def beats_paper_gain(paper: float) -> Rule:
    """Return `beats` for a gain that the paper prints: an effect as small as the paper's refutes nothing."""
    return partial(beats, least=min(MARGIN, paper))


def keeps_paper_difference(paper: float) -> Rule:
    """Return `is_at_least` for a difference that the paper prints, which may be a small loss."""
    return partial(is_at_least, least=min(0.0, paper))


def exceeds(usual: Interval, wide: Interval, *, limit: float, least: float | None = None) -> str:
    """The interval is above `limit`. Refuted if the wider one ends below `least`, by default the limit."""
    if usual is None or wide is None:
        return INCONCLUSIVE
    least = limit if least is None else least
    return CONFIRMED if usual[0] > limit else NOT_CONFIRMED if wide[1] < least else INCONCLUSIVE


def is_level(usual: Interval, wide: Interval) -> str:
    """A and B differ by less than MARGIN. Refuted if the wider interval excludes 0."""
    if usual is None or wide is None:
        return INCONCLUSIVE
    if usual[0] > -MARGIN and usual[1] < MARGIN:
        return CONFIRMED
    return NOT_CONFIRMED if wide[0] > 0 or wide[1] < 0 else INCONCLUSIVE


def widen_interval(difference: PairedDifference, chances: int) -> Interval:
    """Return the interval corrected for `chances` comparisons (Bonferroni), None without one."""
    if difference.interval is None or difference.deviation is None:
        return None
    reach = half_width(difference, 1 - (1 - LEVEL) / chances)
    return difference.mean - reach, difference.mean + reach


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
        usual, times = Counter(counts.values()).most_common(1)[0]
        few = {cell: count for cell, count in counts.items() if times <= MAX_LISTED or count != usual}
        listed = [*(f"{cell} {_millions(count)}" for cell, count in few.items())]
        return [f"parameters: {', '.join(listed + [f'the others {_millions(usual)}'] * (len(few) < len(counts)))}"]

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
    form: str = "{:+.2f}"
    value: Callable[[float], float] = field(default=float)


RATIO_FORMAT = NumberFormat("times", "{:.2f}", math.exp)


def drop_repeated_runs(cases: Sequence[RunComparison]) -> list[RunComparison]:
    """Return each experiment once: of repeated ones the file with more comparisons, then seeds.

    Runs of the same seeds twice, in a grid and in a comparison of contexts, are not new evidence.
    """
    best: dict[tuple[str, int, tuple[str, ...]], RunComparison] = {}
    for case in (case for case in cases if case.available):
        if case.key not in best or case.weight > best[case.key].weight:
            best[case.key] = case
    alike = Counter(key[:2] for key in best)
    return [replace(case, show_settings=alike[key[:2]] > 1) for key, case in best.items()]


def judge_comparisons(
    cases: Sequence[RunComparison],
    rule: Rule,
    shown: NumberFormat = NumberFormat(),
    *,
    limit: float = 0.0,
) -> Verdict:
    """Return the verdict over all sets of runs, a trial each. `limit` is marked in figures."""
    cases = drop_repeated_runs(cases)
    trials = []
    for case in cases:
        sets = sum(other.decides == case.decides for other in cases)
        findings = []
        for what, difference in case.differences.items():
            if difference is None:
                continue
            usual, wide = widen_interval(difference, sets), widen_interval(difference, sets * len(case.differences))
            word = rule(usual, wide)
            decides = wide if word == NOT_CONFIRMED else usual
            far = None if wide is None else (shown.value(wide[0]), shown.value(wide[1]))
            detectable = None if decides is None else shown.value((decides[1] - decides[0]) / 2)
            ends = (
                None
                if difference.interval is None
                else (shown.value(difference.interval[0]), shown.value(difference.interval[1]))
            )
            about = (shown.value(difference.mean), ends, difference.n, word, shown.unit, shown.form)
            findings.append(Finding(what, *about, limit=shown.value(limit), wide=far, detectable=detectable))
        missing = tuple(what for what, difference in case.differences.items() if difference is None)
        seeds = len({row["seed"] for row in case.rows})
        fewer = sum(difference.n < seeds for difference in case.available)
        notes = [f"{fewer} of {len(case.available)} lack a seed that other cells have"] if fewer else []
        collapses = case.collapses if shown.unit == "points" else []  # memory does not depend on the score
        trials.append(
            Trial(
                case.where,
                tuple(findings),
                decides=case.decides,
                missing=missing,
                note="; ".join([*notes, *collapses, *case.sizes]),
                trainings=case.trainings,
                collapsed=bool(collapses),
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
    return judge_comparisons(here, partial(exceeds, limit=limit), RATIO_FORMAT, limit=limit)


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
RULES = (
    "Scores are validation mIoU of the last step, in points. Differences are paired by seed. Intervals are "
    "Student's t at 95 %. With fewer than three shared seeds nothing is decided. What is neither confirmed nor not "
    "confirmed is inconclusive.",
    "“Not confirmed” means that these runs contradict the claim at this scale. It does not mean that the paper's"
    " own runs were wrong.",
    f"A difference matters from {MARGIN:g} points on; this margin is our choice. The paper interprets smaller effects "
    "(an online start gains CD 0.2). Where its own effect is smaller than the margin, only an interval that excludes "
    f"that effect refutes the claim. A ratio counts from {MIN_RATIO:g} on, silent channels from one channel on, the "
    "variation of a norm from 0.05 on.",
    "A claim about several hams or settings asks for all of these comparisons. Each must be confirmed at 95 %. One "
    "of m comparisons that refutes the claim is held to a level of 1 - 5 % / m, so an interval at 95 % may exclude "
    "0 while the verdict is inconclusive. Where the paper prints several effects, the smallest gain or the largest "
    "loss counts.",
    "Over several data sets a claim is confirmed where one set confirms it and none refutes it, and not confirmed "
    "the other way round. Each of s sets that may decide is held to a level of 1 - 5 % / s. Intervals are shown at "
    "95 %. Figures draw that one thick, and thin the wider one that may refute; a grey band is what does not "
    "matter.",
    "Photographs decide. Generated scenes (`patchwork`) are shown next to them and decide only where there is "
    "nothing else. They are a weak test in either direction: tiny networks, a few hundred steps, scenes of 64 x 64 "
    "pixels whose difficulty was set by looking at the scores of the hams. A verdict on them alone says so.",
    "A training that collapsed counts with its score, and the line says how many did: their networks predict only "
    "one class, no other reaches an IoU of 0.1. Such a difference shows that a training failed, not how large an "
    "effect is.",
    "Runs of one recipe with other steps or settings are separate sets of runs, each shown. The same seeds and "
    "settings in two files, of a grid and of a comparison of contexts, are one piece of evidence: the file with "
    "more of the comparisons counts. Missing comparisons and missing seeds are named, and a set with missing "
    "comparisons confirms nothing. Where compared networks differ in their number of parameters, the line states "
    "them.",
    "The effect in a table is that of the comparison that supports the claim least, among those that share its "
    "verdict. “Detectable” is half the width of the interval that decided (or of the confirming interval if none "
    "decided): the smallest effect that these seeds could distinguish from zero. Ratios are means of logarithms; "
    "their “detectable” is a factor.",
    "A cosine over a training is the mean over the steps that were measured. The variation of a norm is the "
    "standard deviation (n - 1) of its natural logarithm over them. Silent channels are their share times the "
    "channels of the head, 64 on `patchwork`, whose rows do not state it. The ratio of two spreads over seeds has "
    "the interval of Pitman and Morgan for paired seeds: with F the ratio of variances, r the correlation over "
    "seeds and k = 1 + 2 (1 - r²) t² / (n - 2), it is that of the root of F (k ± √(k² - 1)), with Student's t of n "
    "- 2 degrees of freedom.",
    "Times are medians of repeated calls with one seed and have no interval over seeds. One is called shorter than "
    "another where its upper quartile is below the other's lower one; everything between is inconclusive. Memory is"
    " counted and has no spread. Growth with n is the exponent between the two largest n that one commit has "
    "measured. Where the largest n takes less than three times the time of the smallest, calls are launch-bound and the"
    " trial is inconclusive.",
    "Distances of GANs are compared as ratios over seeds, by another network than FID's. The times of a GAN's step are "
    "held to the ratio that the paper prints: quartiles must lie on one side of it. What a context adds is the "
    "difference to the step without one, with the quartiles of both steps.",
    "The one-step gradient has two readings that differ: the authors' code differentiates the last codes only "
    "(`one-step`), Eq. 13 the whole last step (`truncated:1`). Each claim about it is judged for both.",
    "A claim about section 2.3 is confirmed where it holds in every solve, and not confirmed where some case "
    "(input, ham, temperature) fails with every seed. The propositions assume that a step is a contraction, L_h < "
    "1, and are judged on the solves where it is. Whether it is one for hams in practice, and whether the conclusions "
    "hold where L_h >= 1, are separate claims. A gradient of zero has no direction and counts as "
    "a different direction from BPTT.",
    "The margin and the rules were fixed before any score of the ablations was seen, but with the comparison of "
    "contexts known. The claims about spectra, silent channels and gradients of trained networks were written after"
    " we had seen one network (`whole`, seed 0 of `parts`); those about ranks of attention and gradients over a "
    "training before any; the limits for the memory of gradients after we had measured a ham of d = 256 on a CPU.",
    "The rules were revised once, after the ablations on generated scenes on a CPU and before any ablation on a "
    "GPU: propositions are held to solves that meet their assumption; Eq. 13 is read in two ways; flat times and "
    "missing measurements confirm nothing; runs are distinguished by steps and settings; an effect that the paper "
    "itself found refutes nothing; a ratio, silent channels and the variation of a norm have a minimum size. Claims "
    "added then, with those rows known: all that end in `-equation`, `-beyond` or `-code`, `propositions-3-bound`, "
    "`inside-spectrum-attention`, `parts-ham-most`, `parts-upper-more` and `temperature-variance`.",
    "Later additions: `gradient-clipped` after the rows of `parts`, `gradient` and `init` on photographs, to ask "
    "why BPTT fails there with VQ and CD; `latent-eightfold-narrow` while `latent` ran on photographs, before its "
    "rows were seen; the rows of `gradient` for `accuracy-nmf`, with those rows known (it was inconclusive until "
    "then). `gradient-memory` says “a whole network” since those rows; it was measured so from the start. The 400 "
    "steps and crops of 257 pixels were set before the first of them, to fit five seeds into the available GPU time; "
    "600 steps had been planned. The claims about image generation were added with all of their rows known.",
    "Grids share trainings: `whole`, `nmf-one-step`, `nmf-random`, `nmf-k6`, `nmf` and the default of `latent` "
    "(`d64-r8` in a head of 64 channels) are one training under six names. Verdicts that depend on it are not "
    "independent evidence.",
    "On photographs the networks of `parts`, `gradient` and `init` were trained in one call, those of the other "
    "grids in a second one of a later commit. One-step NMF, VQ and CD of seeds 0 to 2 therefore exist three times "
    "(`gradient`; `steps`; `angles`, which trains its own) and the breads twice. A GPU sums in another order each "
    "time: the nine pairs of `gradient` and `steps`, of the same recipe and seed, differ by up to 0.9 points, on "
    "average by 0.3. Paired differences contain this scatter too. Rows of `gradient`, `inside`, `latent` and "
    "`steps` on `patchwork` come from two or three commits.",
    "Rows of evaluations (`-at`, `-drawn`, `-inside`) are of whole images at a single scale in float32 without "
    "autocast, hams in plain torch.",
)
