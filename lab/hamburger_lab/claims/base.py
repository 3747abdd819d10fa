"""Claims, and how findings on several sets of runs become one verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hamburger_lab.rows import Results

CONFIRMED, NOT_CONFIRMED, INCONCLUSIVE, NOT_RUN = "confirmed", "not confirmed", "inconclusive", "not run"
MAX_LISTED = 4  # longest list of comparisons that a line writes out
MIN_STEPS = 10_000  # shorter trainings are small-scale; the paper's have 30,000 steps or more
OUTCOMES = (CONFIRMED, NOT_CONFIRMED, INCONCLUSIVE, NOT_RUN)


@dataclass(frozen=True)
class Finding:
    """One comparison on one set of runs: what was compared, its effect in `unit` over `n` seeds, its own outcome."""

    label: str
    effect: float
    interval: tuple[float, float] | None
    n: int
    outcome: str
    unit: str = "points"
    template: str = "{:+.2f}"
    against: bool = False  # a large effect speaks against the claim, such as a growth exponent
    counted: str = "seed"  # what `n` counts
    limit: float | None = None  # threshold of the effect, marked in figures
    short_label: str = ""  # for figures
    refuting: tuple[float, float] | None = None  # wider interval, corrected for several comparisons and data sets
    detectable: float | None = None  # half the width of the deciding interval: the smallest detectable effect

    @property
    def support(self) -> float:
        """Return the sort key: the finding that supports the claim least comes first."""
        return -self.effect if self.against else self.effect

    @property
    def power(self) -> str:
        """Return the smallest detectable effect as text without sign; empty if there is no interval."""
        return "" if self.detectable is None else self.template.format(self.detectable).lstrip("+")

    @property
    def text(self) -> str:
        text = f"{self.label} {self.template.format(self.effect)}"
        if self.interval is not None:
            text += " [{}, {}]".format(*(self.template.format(end) for end in self.interval))
        return text if self.unit == "points" or self.unit in self.label else f"{text} {self.unit}"


@dataclass(frozen=True)
class Trial:
    """All comparisons that a claim asks for on one set of runs; they must all hold.

    `decides` is False for generated scenes where there are photographs. `missing`: comparisons without rows. `note` is
    further text.
    """

    where: str
    findings: tuple[Finding, ...]
    decides: bool = True
    missing: tuple[str, ...] = ()
    note: str = ""
    trainings: tuple[tuple[str, str], ...] = ()  # trainings that several grids share: (label, cell here)
    collapsed: bool = False  # some of the compared networks predict only one class
    steps: int | None = None  # of the compared trainings; None where nothing was trained, or it does not matter

    @property
    def outcome(self) -> str:
        outcomes = [finding.outcome for finding in self.findings]
        if not outcomes:
            return NOT_RUN
        if NOT_CONFIRMED in outcomes:
            return NOT_CONFIRMED
        return CONFIRMED if set(outcomes) == {CONFIRMED} and not self.missing else INCONCLUSIVE

    @property
    def text(self) -> str:
        summary = "; ".join(finding.text for finding in self.findings)
        if len(self.findings) > MAX_LISTED:
            ordered = sorted(self.findings, key=lambda finding: finding.support)
            confirmed = sum(finding.outcome == CONFIRMED for finding in ordered)
            summary = f"{confirmed} of {len(ordered)} comparisons hold, from {ordered[0].text} to {ordered[-1].text}"
        n = sorted({finding.n for finding in self.findings})
        counted = self.findings[0].counted if self.findings else "seed"
        seeds = " to ".join(map(str, dict.fromkeys((n[0], n[-1])))) if n else "no"
        notes = [self.note, f"not run: {'; '.join(self.missing)}" if self.missing else ""]
        return "; ".join([f"{self.where}: {summary} ({seeds} {counted}{'s' * (n != [1])})", *filter(None, notes)])


@dataclass(frozen=True)
class Verdict:
    """The `outcome` over all trials."""

    outcome: str
    trials: tuple[Trial, ...] = ()

    @property
    def decisive(self) -> Finding | None:
        """Return the finding that supports the claim least among those that agree with the verdict."""
        _, finding = self._decisive_pair
        return finding

    @property
    def _decisive_pair(self) -> tuple[Trial | None, Finding | None]:
        """Return the decisive finding after its trial."""
        every = [(trial, finding) for trial in deciding_trials(self.trials) for finding in trial.findings]
        agreeing = [pair for pair in every if pair[1].outcome == self.outcome]
        return min(agreeing or every, key=lambda pair: pair[1].support, default=(None, None))

    @property
    def seeds(self) -> int | None:
        """Seeds of the decisive finding; None if it counts something else, 0 if there is none."""
        decisive = self.decisive
        return 0 if decisive is None else decisive.n if decisive.counted == "seed" else None

    @property
    def generated(self) -> bool:
        """Whether the verdict rests on generated scenes alone."""
        run = [trial for trial in self.trials if trial.findings]
        return bool(run) and not any(trial.decides for trial in run)

    @property
    def collapsed(self) -> bool:
        """Whether some of the networks that decide predict only one class."""
        return any(trial.collapsed for trial in deciding_trials(self.trials))

    @property
    def small_scale(self) -> bool:
        """Whether the decisive comparison is of trainings of fewer than `MIN_STEPS` steps."""
        trial, _ = self._decisive_pair
        return trial is not None and trial.steps is not None and trial.steps < MIN_STEPS

    @property
    def basis(self) -> str:
        """Return the caveats of the verdict as text."""
        caveats = {
            "generated scenes alone": self.generated,
            "some trainings collapsed": self.collapsed,
            "small scale": self.small_scale,
        }
        return ", ".join(name for name, applies in caveats.items() if applies)

    @property
    def here(self) -> str:
        texts = [trial.text for trial in self.trials]
        if {CONFIRMED, NOT_CONFIRMED} <= {trial.outcome for trial in deciding_trials(self.trials)}:
            texts.append("the sets of runs contradict each other")
        return " | ".join(texts)


@dataclass(frozen=True)
class Claim:
    """`statement` in our words, `paper` its numbers, `test` what decides here, `command` what makes the rows.

    `ours` marks a question that the paper does not ask; such claims are counted apart.
    """

    id: str
    family: str
    statement: str
    reference: str
    paper: str
    test: str
    command: str
    judge: Callable[[Results], Verdict]
    ours: bool = False


def deciding_trials(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials on photographs, or all if there are none: generated scenes were tuned to show the layers."""
    trials = list(trials)
    return [trial for trial in trials if trial.decides] or trials


def combine_trials(trials: Sequence[Trial]) -> Verdict:
    """Return one verdict: confirmed if a trial confirms and none refutes, not confirmed the other way round."""
    trials = sorted(trials, key=lambda trial: not trial.decides)
    outcomes = {trial.outcome for trial in deciding_trials(trials)} - {NOT_RUN}
    if not outcomes:
        return Verdict(NOT_RUN, tuple(trials))
    if CONFIRMED in outcomes and NOT_CONFIRMED not in outcomes:
        return Verdict(CONFIRMED, tuple(trials))
    if NOT_CONFIRMED in outcomes and CONFIRMED not in outcomes:
        return Verdict(NOT_CONFIRMED, tuple(trials))
    return Verdict(INCONCLUSIVE, tuple(trials))


# -- commands --------------------------------------------------------------------------------------------------------

ANIMALS_OPTIONS = (
    "--recipe voc-animals --data VOC --set model.pretrained=resnet50_v1_imagenet_int8.safetensors --set steps=400 "
    "--set eval_every=400 --set checkpoint_every=400 --set data.crop=257"
)

FIVE_SEED_GRIDS = ("parts", "gradient", "init")  # Tables 1, 2 and 8, whose differences are the smallest


def ablate_command(name: str) -> str:
    """Return the command that makes the rows of an ablation on photographs; grids in one folder share trainings."""
    seeds = "0,1,2,3,4" if name in FIVE_SEED_GRIDS else "0,1,2"
    return (
        f"ham ablate {name} {ANIMALS_OPTIONS} --seeds {seeds} --jobs 12 --out runs/grids "
        f"--json results/ablation_{name}_voc-animals_h200.jsonl"
    )


# -- two readings of Eq. 13 ------------------------------------------------------------------------------------------


class GradientReading(NamedTuple):
    """One reading of the one-step gradient: its name in calls, in cells, in fields of rows, and as a phrase."""

    suffix: str
    grad: str
    cell: str
    field: str
    phrase: str

    def id(self, name: str) -> str:
        return name + self.suffix


CODE = GradientReading(
    "", "one-step", "one-step", "one_step", "the one-step gradient of the authors' code (the last codes alone)"
)
EQUATION = GradientReading(
    "-equation", "truncated:1", "truncated1", "truncated1", "the one-step gradient of Eq. 13 (the whole last step)"
)
READINGS = (CODE, EQUATION)
