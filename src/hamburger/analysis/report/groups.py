"""Runs that differ in nothing but the seed are one group; a group is called by what sets it apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hamburger.analysis.report.runs import Run, RunError
from hamburger.analysis.report.statistics import Difference, Summary, paired, summarise
from hamburger.recipes.kinds import Kind
from hamburger.solvers.base import hams

# what decides how a run is fed and watched, not what it computes
IRRELEVANT = {"seed", "log_every", "eval_every", "checkpoint_every", "tensorboard", "data.workers", "data.resident"}
KINDS = ("baseline", "breads", "ham", "rival")
CONTEXT = ("model.context", "model.context_options")


@dataclass(frozen=True, eq=False)  # each is itself
class Group:
    """One variant over its seeds, by rising seed. `kind` is one of KINDS."""

    name: str
    kind: str
    runs: tuple[Run, ...]

    @property
    def scores(self) -> dict[int, float]:
        """Of the finished runs by seed."""
        return {run.seed: run.score for run in self.runs if run.score is not None}

    @property
    def score(self) -> Summary | None:
        return summarise(list(self.scores.values())) if self.scores else None

    def value(self, field: str) -> Summary | None:
        """A number of result.json over the runs that have it."""
        had = [run.result[field] for run in self.runs if isinstance(run.result.get(field), (int, float))]
        return summarise(had) if had else None


@dataclass(frozen=True)
class Study:
    """`reference` is what the others are compared with: the baseline where there is one, else the first group.

    `mixed` names the fields besides the context in which groups differ: with any, a difference between groups is not
    the context's alone.
    """

    kind: Kind
    groups: tuple[Group, ...]
    reference: Group
    mixed: tuple[str, ...]

    def difference(self, group: Group) -> Difference | None:
        return None if group is self.reference else paired(group.scores, self.reference.scores)

    def best(self, *kinds: str) -> Group | None:
        """The best mean among groups of those kinds, of all without any."""
        means = {group: group.score.mean for group in self.groups if group.score and (not kinds or group.kind in kinds)}
        pick = max if self.kind.score.higher else min
        return pick(means, key=means.__getitem__, default=None)


def study(runs: Sequence[Run]) -> Study:
    """Groups by kind, the baseline first, and among their kind in the order in which they were given."""
    tasks = {run.kind.task: run.kind for run in runs}
    if len(tasks) > 1:
        raise RunError(f"report: these runs are for {' and '.join(sorted(tasks))}; one page is about one task")
    sorted_out: dict[str, list[Run]] = {}
    fields: dict[str, dict[str, Any]] = {}
    for run in runs:
        flat = {key: value for key, value in flatten(run.recipe).items() if key not in IRRELEVANT}
        identity = json.dumps(flat, sort_keys=True)
        sorted_out.setdefault(identity, []).append(run)
        fields[identity] = flat
    mixed = [key for key in _differing(list(fields.values())) if not key.startswith(CONTEXT)]
    kinds = {identity: _called(members[0].recipe["model"]) for identity, members in sorted_out.items()}

    groups = []
    for identity, members in sorted_out.items():
        name, kind = kinds[identity]
        # namesakes are told apart by their settings; a context without any is called by its name alone
        namesakes = [fields[other] for other, (called, _) in kinds.items() if called == name]
        settings = [
            f"{key.rpartition('.')[2]}={_plain(fields[identity].get(key, 'default'))}" for key in _differing(namesakes)
        ]
        groups.append(Group(" ".join([name, *settings]), kind, _by_seed(members)))
    groups.sort(key=lambda group: KINDS.index(group.kind))
    return Study(runs[0].kind, tuple(groups), groups[0], tuple(mixed))


def _differing(recipes: Sequence[dict[str, Any]]) -> list[str]:
    known = sorted({key for flat in recipes for key in flat})
    return [key for key in known if len({json.dumps(flat.get(key)) for flat in recipes}) > 1]


def _by_seed(members: Sequence[Run]) -> tuple[Run, ...]:
    seeds: dict[int, Run] = {}
    for run in members:
        if run.seed in seeds:
            raise RunError(
                f"report: {seeds[run.seed].path} and {run.path} have one recipe and one seed, {run.seed}; a repeated "
                f"run is no further sample: leave one of them out"
            )
        seeds[run.seed] = run
    return tuple(seeds[seed] for seed in sorted(seeds))


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Nested objects as one level of dotted names."""
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for key, entry in value.items():
        found |= flatten(entry, f"{path}.{key}" if path else key)
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
