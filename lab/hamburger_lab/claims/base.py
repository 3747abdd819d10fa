"""What a claim is, and how findings on several sets of runs become one verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hamburger_lab.rows import Results

CONFIRMED, NOT_CONFIRMED, INCONCLUSIVE, NOT_RUN = "confirmed", "not confirmed", "inconclusive", "not run"
MAX_LISTED = 4  # comparisons that a line spells out
VERDICT_WORDS = (CONFIRMED, NOT_CONFIRMED, INCONCLUSIVE, NOT_RUN)


@dataclass(frozen=True)
class Finding:
    """One comparison on one set of runs: `what` was found, in `unit`, over `n` seeds, and what that says by itself."""

    what: str
    effect: float
    interval: tuple[float, float] | None
    n: int
    word: str
    unit: str = "points"
    shown: str = "{:+.2f}"
    against: bool = False  # a large effect speaks against the claim, such as the exponent of something said to be cheap
    counted: str = "seed"  # what `n` counts
    limit: float | None = None  # what the effect is held against, for figures
    short: str = ""  # for figures, where `what` is too long
    wide: tuple[float, float] | None = None  # the interval that may refute, of several comparisons and data sets
    tells: float | None = None  # half the width of the interval that decides: the smallest effect it could have told

    @property
    def support(self) -> float:
        """What orders findings from the one that speaks least for the claim."""
        return -self.effect if self.against else self.effect

    @property
    def power(self) -> str:
        """What these seeds could have told, as a size without sign; empty where no interval decides."""
        return "" if self.tells is None else self.shown.format(self.tells).lstrip("+")

    @property
    def text(self) -> str:
        said = f"{self.what} {self.shown.format(self.effect)}"
        if self.interval is not None:
            said += " [{}, {}]".format(*(self.shown.format(end) for end in self.interval))
        return said if self.unit == "points" else f"{said} {self.unit}".rstrip()


@dataclass(frozen=True)
class Trial:
    """All comparisons that a claim asks for on one set of runs; they must all hold.

    `decides` is False for generated scenes beside photographs, `missing` names comparisons without rows, `note` says
    what else a reader must know.
    """

    where: str
    findings: tuple[Finding, ...]
    decides: bool = True
    missing: tuple[str, ...] = ()
    note: str = ""
    rests: tuple[tuple[str, str], ...] = ()  # trainings that several grids know, each with its cell here
    collapsed: bool = False  # some of the networks that are compared answer one class alone

    @property
    def word(self) -> str:
        words = [finding.word for finding in self.findings]
        if not words:
            return NOT_RUN
        if NOT_CONFIRMED in words:
            return NOT_CONFIRMED
        return CONFIRMED if set(words) == {CONFIRMED} and not self.missing else INCONCLUSIVE

    @property
    def text(self) -> str:
        said = "; ".join(finding.text for finding in self.findings)
        if len(self.findings) > MAX_LISTED:
            ordered = sorted(self.findings, key=lambda finding: finding.support)
            held = sum(finding.word == CONFIRMED for finding in ordered)
            said = f"{held} of {len(ordered)} comparisons hold, from {ordered[0].text} to {ordered[-1].text}"
        n = sorted({finding.n for finding in self.findings})
        counted = self.findings[0].counted if self.findings else "seed"
        seeds = " to ".join(map(str, dict.fromkeys((n[0], n[-1])))) if n else "no"
        notes = [self.note, f"not run: {'; '.join(self.missing)}" if self.missing else ""]
        return "; ".join([f"{self.where}: {said} ({seeds} {counted}{'s' * (n != [1])})", *filter(None, notes)])


@dataclass(frozen=True)
class Verdict:
    """`word` over all trials, and the finding it hangs on: the least of those that say the same as the verdict."""

    word: str
    trials: tuple[Trial, ...] = ()

    @property
    def telling(self) -> Finding | None:
        said = [trial for trial in deciding_trials(self.trials) if trial.findings]
        every = [finding for trial in said for finding in trial.findings]
        agreeing = [finding for finding in every if finding.word == self.word]
        return min(agreeing or every, key=lambda finding: finding.support, default=None)

    @property
    def seeds(self) -> int | None:
        """How many the telling finding has; None where it counts something else, 0 where there is none."""
        telling = self.telling
        return 0 if telling is None else telling.n if telling.counted == "seed" else None

    @property
    def generated(self) -> bool:
        """Whether no photograph had a say."""
        run = [trial for trial in self.trials if trial.findings]
        return bool(run) and not any(trial.decides for trial in run)

    @property
    def collapsed(self) -> bool:
        """Whether some networks that had a say answer one class alone."""
        return any(trial.collapsed for trial in deciding_trials(self.trials))

    @property
    def basis(self) -> str:
        """What a reader must know beside the word."""
        return ", ".join(["generated scenes alone"] * self.generated + ["some trainings collapsed"] * self.collapsed)

    @property
    def here(self) -> str:
        said = [trial.text for trial in self.trials]
        if {CONFIRMED, NOT_CONFIRMED} <= {trial.word for trial in deciding_trials(self.trials)}:
            said.append("the sets of runs contradict each other")
        return " | ".join(said)


@dataclass(frozen=True)
class Claim:
    """`statement` in our words, `paper` its numbers, `test` what decides here, `command` what makes the rows."""

    id: str
    family: str
    statement: str
    reference: str
    paper: str
    test: str
    command: str
    judge: Callable[[Results], Verdict]


def deciding_trials(trials: Iterable[Trial]) -> list[Trial]:
    """Photographs where there are any; generated scenes were tuned to show what the layers can do."""
    trials = list(trials)
    return [trial for trial in trials if trial.decides] or trials


def combine_trials(trials: Sequence[Trial]) -> Verdict:
    """Confirmed somewhere and refuted nowhere; refuted somewhere and confirmed nowhere; otherwise inconclusive."""
    trials = sorted(trials, key=lambda trial: not trial.decides)
    words = {trial.word for trial in deciding_trials(trials)} - {NOT_RUN}
    if not words:
        return Verdict(NOT_RUN, tuple(trials))
    if CONFIRMED in words and NOT_CONFIRMED not in words:
        return Verdict(CONFIRMED, tuple(trials))
    if NOT_CONFIRMED in words and CONFIRMED not in words:
        return Verdict(NOT_CONFIRMED, tuple(trials))
    return Verdict(INCONCLUSIVE, tuple(trials))


# ----------------------------------------------------------------------------------------------------------------------
# The commands that make the rows of an ablation, as a person types them.


ANIMALS_OPTIONS = (
    "--recipe voc-animals --data VOC --set model.pretrained=resnet50_v1_imagenet_int8.safetensors --set steps=400 "
    "--set eval_every=400 --set checkpoint_every=400 --set data.crop=257"
)

FIVE_SEED_GRIDS = ("parts", "gradient", "init")  # Tables 1, 2 and 8, whose differences are the smallest


def ablate_command(name: str) -> str:
    """On photographs, with a ResNet-50 that has seen ImageNet. Grids in one folder share the trainings of both."""
    seeds = "0,1,2,3,4" if name in FIVE_SEED_GRIDS else "0,1,2"
    return (
        f"ham ablate {name} {ANIMALS_OPTIONS} --seeds {seeds} --jobs 12 --out runs/grids "
        f"--json results/ablation_{name}_voc-animals_h200.jsonl"
    )


# ----------------------------------------------------------------------------------------------------------------------
# Eq. 13 in two readings that differ: a claim about it is judged by both, so that a reader sees where they disagree.


class GradientReading(NamedTuple):
    """`grad` as calls name it, `cell` as grids do, `field` as rows do, `said` as a sentence does."""

    suffix: str
    grad: str
    cell: str
    field: str
    said: str

    def id(self, name: str) -> str:
        return name + self.suffix


CODE = GradientReading(
    "", "one-step", "one-step", "one_step", "the one-step gradient of the authors' code (the last codes alone)"
)
EQUATION = GradientReading(
    "-equation", "truncated:1", "truncated1", "truncated1", "the one-step gradient of Eq. 13 (the whole last sweep)"
)
READINGS = (CODE, EQUATION)
