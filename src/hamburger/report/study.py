"""Run folders as a study: reading runs, grouping those that differ only in their seed, and statistics over seeds."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from hamburger.errors import DataError, check_count, shorten
from hamburger.files import is_number, parse_json, read_json_object, read_text
from hamburger.hams.base import hams
from hamburger.tasks import task_named
from hamburger.training.recipe import build_recipe, flatten_fields, to_json
from hamburger.training.run_folder import read_result
from hamburger.training.task import Task

LEVEL = 0.95  # confidence of every interval that is not asked for at another level


@dataclass(frozen=True)
class SampleSummary:
    """Mean and sample standard deviation (n - 1) of `n` values; `deviation` is None for one value."""

    mean: float
    deviation: float | None
    n: int


@dataclass(frozen=True)
class PairedDifference(SampleSummary):
    """Mean difference paired by seed, with its 95 % interval.

    `interval` is None below three pairs: for two, it would reach 12.7 standard errors each way.
    """

    interval: tuple[float, float] | None

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def summarise(values: Sequence[float]) -> SampleSummary:
    """Return mean and sample standard deviation of `values`, which must not be empty."""
    mean = fmean(values)
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
    reach = half_width(summary) if summary.n > 2 else None
    interval = None if reach is None else (summary.mean - reach, summary.mean + reach)
    return PairedDifference(summary.mean, summary.deviation, summary.n, interval)


def half_width(summary: SampleSummary, level: float = LEVEL) -> float:
    """Return half the width of Student's t interval of the mean at confidence `level`; needs two values or more."""
    if summary.deviation is None:
        raise ValueError(f"half_width: needs at least two values (got {summary.n})")
    return t_quantile((1 + level) / 2, summary.n - 1) * summary.deviation / math.sqrt(summary.n)


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution with `degrees` degrees of freedom."""
    from scipy.stats import t  # slow to import

    return float(t.ppf(probability, degrees))


# -- runs --------------------------------------------------------------------------------------------------------------


class RunError(DataError):
    """A folder that is not a run, or a file of a run that cannot be read."""


@dataclass(frozen=True)
class RunRecord:
    """One run folder. `result` is empty until the run finishes; `rows` are the lines of metrics.jsonl."""

    path: Path
    recipe: dict[str, Any]
    result: dict[str, Any] = field(default_factory=dict)
    rows: tuple[dict[str, Any], ...] = ()
    weights: Path | None = None

    @property
    def seed(self) -> int:
        return int(self.recipe["seed"])

    @property
    def task(self) -> Task[Any]:
        return task_named(self.recipe.get("task"), f"report: {self.path}")

    @property
    def score(self) -> float | None:
        """The task's first score; None until the run finishes."""
        return self.result.get(self.task.metric.name)

    def curve(self, field: str) -> dict[int, float]:
        """Step to value, of the rows with a number under that name; a later row of a step replaces an earlier one."""
        return {int(row["step"]): float(row[field]) for row in self.rows if is_number(row.get(field))}


def read_run(path: Path) -> RunRecord:
    """Read the run in that folder; a file that exists but cannot be read raises RunError."""
    if not (path / "recipe.json").exists():
        why = "has no recipe.json, so it is not a run folder" if path.is_dir() else "is not a run folder"
        raise RunError(f"report: {path} {why}; give one written by `ham train --run`")
    values = read_json_object(path / "recipe.json", "report")
    if isinstance(values.get("optim"), dict) and "discriminator_lr" in values["optim"]:
        raise RunError(f"report: {path} is a GAN run; use `ham gan report {path}`")
    source = f"report: {path / 'recipe.json'}"
    task = task_named(values.get("task"), source)
    recipe = json.loads(to_json(build_recipe(values, task.recipe, source)))
    result = read_result(path / "result.json", "report", task) if (path / "result.json").exists() else {}
    weights = path / "best.safetensors"
    rows = tuple(read_rows(path / "metrics.jsonl"))
    return RunRecord(path, recipe, result, rows, weights if weights.exists() else None)


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """Read every run once; a folder of run folders stands for the runs in it."""
    folders: dict[str, Path] = {}
    for path in paths:
        inside = sorted(entry.parent for entry in path.glob("*/recipe.json")) if path.is_dir() else []
        for run in [path] if (path / "recipe.json").exists() or not inside else inside:
            folders.setdefault(os.path.realpath(run), run)
    if not folders:
        raise RunError("report: no run folder given; name at least one written by `ham train --run`")
    return [read_run(run) for run in folders.values()]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the lines of metrics.jsonl; an incomplete last line of a running process is skipped."""
    lines = read_text(path, "report", most=2**26).split("\n")[:-1] if path.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            check_count("report", "step", row["step"], least=0)
        except (ValueError, KeyError, TypeError) as broken:
            raise RunError(
                f"report: {path}, line {number}: expected a JSON object with a 'step' (got {shorten(line)}: {broken}); "
                "fix or remove that line"
            ) from None
        rows.append(row)
    return rows


# -- runs that predict a single class ----------------------------------------------------------------------------------


ALL_COLLAPSED = (
    "Every run predicts one class only, so these scores compare nothing: check the labels with `ham data check`, or "
    "train longer."
)


def has_collapsed(result: Mapping[str, Any]) -> bool:
    """Return whether a network predicts only one class: no other class reaches a score of 0.1."""
    scores = result.get("per_class")
    if not isinstance(scores, dict) or len(scores) < 2:
        return False
    return sum(is_number(score) and score >= 0.1 for score in scores.values()) <= 1


def describe_collapses(task: Task[Any], groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a sentence for each group with such runs, or one if all runs are; `groups`: name to results."""
    if not task.single_class:
        return []
    counts = {name: sum(map(has_collapsed, results)) for name, results in groups.items() if results}
    if counts and all(counts[name] == len(groups[name]) for name in counts):
        return [ALL_COLLAPSED]
    return [
        f"{name} predicts one class only with {count} of {len(groups[name])} seeds: its mean says little."
        for name, count in counts.items()
        if count
    ]


# -- groups of runs that differ only in the seed -----------------------------------------------------------------------


# fields that do not change what a run computes
IGNORED_FIELDS = {"seed", "log_every", "eval_every", "checkpoint_every", "tensorboard", "data.workers", "data.resident"}
KINDS = ("baseline", "breads", "ham", "rival")
CONTEXT_FIELDS = ("model.context", "model.context_options")


@dataclass(frozen=True, eq=False)  # compared by identity
class RunGroup:
    """The runs of one variant, by rising seed. `kind` is one of KINDS."""

    name: str
    kind: str
    runs: tuple[RunRecord, ...]

    @property
    def scores(self) -> dict[int, float]:
        """Seed to score, of the finished runs."""
        return {run.seed: run.score for run in self.runs if run.score is not None}

    @property
    def score(self) -> SampleSummary | None:
        return summarise(list(self.scores.values())) if self.scores else None

    def mean(self, field: str) -> float | None:
        """Mean of a number of result.json over the runs that have it; None if none has."""
        values = [run.result[field] for run in self.runs if is_number(run.result.get(field))]
        return fmean(values) if values else None


@dataclass(frozen=True)
class Study:
    """The groups of one report. `reference`, which others are compared with, is the baseline or else the first group.

    `mixed` names the fields besides the context in which groups differ; if there are any, a difference between groups
    is not due to the context alone.
    """

    task: Task[Any]
    groups: tuple[RunGroup, ...]
    reference: RunGroup
    mixed: tuple[str, ...]

    @property
    def runs(self) -> list[RunRecord]:
        return [run for group in self.groups for run in group.runs]

    def difference(self, group: RunGroup) -> PairedDifference | None:
        return None if group is self.reference else compare_paired(group.scores, self.reference.scores)

    def best(self, *kinds: str) -> RunGroup | None:
        """The group with the best mean score among those kinds; among all if none is given."""
        means = {group: group.score.mean for group in self.groups if group.score and (not kinds or group.kind in kinds)}
        pick = max if self.task.metric.higher else min
        return pick(means, key=means.__getitem__, default=None)


def group_runs(runs: Sequence[RunRecord]) -> Study:
    """Group runs of one task: by kind, the baseline first, and within a kind in the given order."""
    tasks = {run.task.name for run in runs}
    if len(tasks) > 1:
        raise RunError(f"report: these runs are for {' and '.join(sorted(tasks))}; give runs of one task")
    members: dict[str, dict[int, RunRecord]] = {}  # by recipe without its seed, then by seed
    fields: dict[str, dict[str, Any]] = {}
    for run in runs:
        flat = {key: value for key, value in flatten_fields(run.recipe).items() if key not in IGNORED_FIELDS}
        identity = json.dumps(flat, sort_keys=True)
        fields[identity] = flat
        same = members.setdefault(identity, {}).setdefault(run.seed, run)
        if same is not run:
            raise RunError(
                f"report: {same.path} and {run.path} have the same recipe and seed ({run.seed}); a repeated run is not "
                "another sample: leave one of them out"
            )
    kinds = {identity: _name_and_kind(next(iter(by_seed.values())).recipe) for identity, by_seed in members.items()}
    groups = []
    for identity, by_seed in members.items():
        name, kind = kinds[identity]
        # groups of the same name are distinguished by the settings in which they differ
        namesakes = [fields[other] for other, (other_name, _) in kinds.items() if other_name == name]
        settings = [
            f"{key.rpartition('.')[2]}={_format_value(fields[identity].get(key, 'default'))}"
            for key in _differing(namesakes)
        ]
        by_rising_seed = tuple(by_seed[seed] for seed in sorted(by_seed))
        groups.append(RunGroup(" ".join([name, *settings]), kind, by_rising_seed))
    groups.sort(key=lambda group: KINDS.index(group.kind))
    mixed = tuple(key for key in _differing(list(fields.values())) if not key.startswith(CONTEXT_FIELDS))
    return Study(runs[0].task, tuple(groups), groups[0], mixed)


def _differing(recipes: Sequence[dict[str, Any]]) -> list[str]:
    known = sorted({key for flat in recipes for key in flat})
    return [key for key in known if len({json.dumps(flat.get(key)) for flat in recipes}) > 1]


def _name_and_kind(recipe: dict[str, Any]) -> tuple[str, str]:
    """Name and kind of a variant, from its head and context."""
    model = recipe["model"]
    system, context = str(model.get("name", "hamnet")), model.get("context")
    if system != "hamnet":
        return system, "ham" if system == "lightham" else "rival"
    if context is None:
        return "baseline", "baseline"
    parts = (model.get("context_options") or {}).get("parts", "ham")
    if "ham" not in (parts if isinstance(parts, list) else str(parts).split(",")):
        return "breads", "breads"
    return str(context), "ham" if context in (*hams, "lightham") else "rival"


def _format_value(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
