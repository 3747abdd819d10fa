"""Run folders as values, grouped by everything but their seed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hamburger.errors import HamburgerError
from hamburger.hams.base import hams
from hamburger.report.statistics import PairedDifference, SampleSummary, compare_paired, summarise
from hamburger.tasks import task_named
from hamburger.training.task import Task

Curve = list[tuple[int, float]]


class RunError(HamburgerError, ValueError):
    """A folder that is no run, or a file of a run that cannot be read."""


@dataclass(frozen=True)
class RunRecord:
    """`result` is empty while a run has not finished; `rows` are the lines of metrics.jsonl."""

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
        """Of the finished run."""
        return self.result.get(self.task.score.name)

    def curve(self, field: str) -> Curve:
        """(step, value) of the rows that have a finite number under that name, by rising step."""
        points = {}
        for row in self.rows:
            value = row.get(field)
            if isinstance(value, (int, float)) and math.isfinite(value):
                points[int(row["step"])] = float(value)  # the last row of a step is the one that counts
        return sorted(points.items())


def read_run(path: Path) -> RunRecord:
    """The run in that folder; a file that is there but cannot be read raises and is named."""
    if not path.is_dir():
        raise RunError(f"report: {path} is no run folder; give what `ham train --run` has written")
    if not (path / "recipe.json").exists():
        raise RunError(f"report: {path} has no recipe.json, so it is no run folder; `ham train --run` writes one")
    recipe = read_json_object(path / "recipe.json")
    result = read_json_object(path / "result.json") if (path / "result.json").exists() else {}
    if not isinstance(recipe.get("model"), dict) or not isinstance(recipe.get("data"), dict):
        raise RunError(f"report: {path / 'recipe.json'} names no model and data; it is not the recipe of a run")
    if not isinstance(recipe.get("seed"), int):
        raise RunError(f"report: {path / 'recipe.json'} has no seed; it is not the recipe of a run")
    if "discriminator_lr" in recipe.get("optim", {}):
        raise RunError(f"report: {path} is a run of a GAN; `ham gan report {path}` is for those")
    name = task_named(recipe.get("task"), f"report: {path / 'recipe.json'}").score.name
    if result and not _is_number(result.get(name)):
        raise RunError(f"report: {path / 'result.json'} has no number '{name}'; it is not the result of a run")
    weights = path / "best.safetensors"
    return RunRecord(
        path, recipe, result, tuple(read_rows(path / "metrics.jsonl")), weights if weights.exists() else None
    )


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """All of them, each folder once. A folder of run folders stands for those in it."""
    found: dict[Path, Path] = {}
    for path in paths:
        inside = sorted(entry.parent for entry in path.glob("*/recipe.json")) if path.is_dir() else []
        for run in [path] if (path / "recipe.json").exists() or not inside else inside:
            found.setdefault(run.resolve(), run)
    if not found:
        raise RunError("report: no run folder was given; name at least one that `ham train --run` has written")
    return [read_run(run) for run in found.values()]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Lines of metrics. The last one may be cut short by a run that is writing it right now."""
    if not path.exists():
        return []
    rows = []
    lines = _text(path).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as broken:
            if number == len(lines):
                break
            raise RunError(f"report: {path}, line {number}: no JSON ({broken}); mend or remove that line") from None
        if not isinstance(row, dict) or not _is_number(row.get("step")):
            raise RunError(f"report: {path}, line {number}: every line is an object with a 'step', got {line[:80]!r}")
        rows.append(row)
    return rows


def read_json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except ValueError as broken:
        raise RunError(f"report: {path} is no JSON ({broken}); the run that wrote it did not finish it") from None
    if not isinstance(value, dict):
        raise RunError(f"report: {path} must hold a JSON object, got {type(value).__name__}")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RunError(f"report: {path} is no text; the file is damaged") from None
    except OSError as closed:
        raise RunError(f"report: {path} cannot be read: {closed.strerror or closed}") from None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# ----------------------------------------------------------------------------------------------------------------------
# Runs that differ in nothing but the seed are one group; a group is called by what sets it apart.


# what decides how a run is fed and watched, not what it computes
IGNORED_FIELDS = {"seed", "log_every", "eval_every", "checkpoint_every", "tensorboard", "data.workers", "data.resident"}
KINDS = ("baseline", "breads", "ham", "rival")
CONTEXT_FIELDS = ("model.context", "model.context_options")


@dataclass(frozen=True, eq=False)  # each is itself
class RunGroup:
    """One variant over its seeds, by rising seed. `kind` is one of KINDS."""

    name: str
    kind: str
    runs: tuple[RunRecord, ...]

    @property
    def scores(self) -> dict[int, float]:
        """Of the finished runs by seed."""
        return {run.seed: run.score for run in self.runs if run.score is not None}

    @property
    def score(self) -> SampleSummary | None:
        return summarise(list(self.scores.values())) if self.scores else None

    def value(self, field: str) -> SampleSummary | None:
        """A number of result.json over the runs that have it."""
        had = [run.result[field] for run in self.runs if isinstance(run.result.get(field), (int, float))]
        return summarise(had) if had else None


@dataclass(frozen=True)
class Study:
    """`reference` is what the others are compared with: the baseline where there is one, else the first group.

    `mixed` names the fields besides the context in which groups differ: with any, a difference between groups is not
    the context's alone.
    """

    task: Task[Any]
    groups: tuple[RunGroup, ...]
    reference: RunGroup
    mixed: tuple[str, ...]

    def difference(self, group: RunGroup) -> PairedDifference | None:
        return None if group is self.reference else compare_paired(group.scores, self.reference.scores)

    def best(self, *kinds: str) -> RunGroup | None:
        """The best mean among groups of those kinds, of all without any."""
        means = {group: group.score.mean for group in self.groups if group.score and (not kinds or group.kind in kinds)}
        pick = max if self.task.score.higher else min
        return pick(means, key=means.__getitem__, default=None)


def group_runs(runs: Sequence[RunRecord]) -> Study:
    """Groups by kind, the baseline first, and among their kind in the order in which they were given."""
    tasks = {run.task.name for run in runs}
    if len(tasks) > 1:
        raise RunError(f"report: these runs are for {' and '.join(sorted(tasks))}; one page is about one task")
    sorted_out: dict[str, list[RunRecord]] = {}
    fields: dict[str, dict[str, Any]] = {}
    for run in runs:
        flat = {key: value for key, value in flatten_fields(run.recipe).items() if key not in IGNORED_FIELDS}
        identity = json.dumps(flat, sort_keys=True)
        sorted_out.setdefault(identity, []).append(run)
        fields[identity] = flat
    mixed = [key for key in _differing(list(fields.values())) if not key.startswith(CONTEXT_FIELDS)]
    kinds = {identity: _called(members[0].recipe["model"]) for identity, members in sorted_out.items()}

    groups = []
    for identity, members in sorted_out.items():
        name, kind = kinds[identity]
        # namesakes are told apart by their settings; a context without any is called by its name alone
        namesakes = [fields[other] for other, (called, _) in kinds.items() if called == name]
        settings = [
            f"{key.rpartition('.')[2]}={_plain(fields[identity].get(key, 'default'))}" for key in _differing(namesakes)
        ]
        groups.append(RunGroup(" ".join([name, *settings]), kind, _by_seed(members)))
    groups.sort(key=lambda group: KINDS.index(group.kind))
    return Study(runs[0].task, tuple(groups), groups[0], tuple(mixed))


def _differing(recipes: Sequence[dict[str, Any]]) -> list[str]:
    known = sorted({key for flat in recipes for key in flat})
    return [key for key in known if len({json.dumps(flat.get(key)) for flat in recipes}) > 1]


def _by_seed(members: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    seeds: dict[int, RunRecord] = {}
    for run in members:
        if run.seed in seeds:
            raise RunError(
                f"report: {seeds[run.seed].path} and {run.path} have one recipe and one seed, {run.seed}; a repeated "
                f"run is no further sample: leave one of them out"
            )
        seeds[run.seed] = run
    return tuple(seeds[seed] for seed in sorted(seeds))


def flatten_fields(value: Any, path: str = "") -> dict[str, Any]:
    """Nested objects as one level of dotted names."""
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for key, entry in value.items():
        found |= flatten_fields(entry, f"{path}.{key}" if path else key)
    return found


def _called(model: dict[str, Any]) -> tuple[str, str]:
    """Name and kind of a model by its head and context."""
    system = str(model.get("name", "hamnet"))
    context, options = model.get("context"), model.get("context_options") or {}
    if system != "hamnet":
        return system, "ham" if system == "lightham" else "rival"
    if context is None:
        return "baseline", "baseline"
    if "parts" in options and "ham" not in _words(options["parts"]):
        return "breads", "breads"
    return str(context), "ham" if context in (*hams, "lightham") else "rival"


def _words(parts: Any) -> list[str]:
    return parts.split(",") if isinstance(parts, str) else list(parts)


def _plain(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
