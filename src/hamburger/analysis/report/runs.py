"""Run folders as values: what a training run has written, read with an eye for what is missing or broken."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hamburger.errors import HamburgerError
from hamburger.recipes.kinds import Kind, kind_named

Curve = list[tuple[int, float]]


class RunError(HamburgerError, ValueError):
    """A folder that is no run, or a file of a run that cannot be read."""


@dataclass(frozen=True)
class Run:
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
    def kind(self) -> Kind:
        """Its task, and the scores that this is judged by."""
        return kind_named(self.recipe.get("task"), f"report: {self.path}")

    @property
    def score(self) -> float | None:
        """Of the finished run."""
        return self.result.get(self.kind.score.name)

    def curve(self, field: str) -> Curve:
        """(step, value) of the rows that have a finite number under that name, by rising step."""
        points = {}
        for row in self.rows:
            value = row.get(field)
            if isinstance(value, (int, float)) and math.isfinite(value):
                points[int(row["step"])] = float(value)  # the last row of a step is the one that counts
        return sorted(points.items())


def read_run(path: Path) -> Run:
    """The run in that folder; a file that is there but cannot be read raises and is named."""
    if not path.is_dir():
        raise RunError(f"report: {path} is no run folder; give what `ham train --run` has written")
    if not (path / "recipe.json").exists():
        raise RunError(f"report: {path} has no recipe.json, so it is no run folder; `ham train --run` writes one")
    recipe = read_object(path / "recipe.json")
    result = read_object(path / "result.json") if (path / "result.json").exists() else {}
    if not isinstance(recipe.get("model"), dict) or not isinstance(recipe.get("data"), dict):
        raise RunError(f"report: {path / 'recipe.json'} names no model and data; it is not the recipe of a run")
    if not isinstance(recipe.get("seed"), int):
        raise RunError(f"report: {path / 'recipe.json'} has no seed; it is not the recipe of a run")
    if "discriminator_lr" in recipe.get("optim", {}):
        raise RunError(f"report: {path} is a run of a GAN; `ham gan report {path}` is for those")
    name = kind_named(recipe.get("task"), f"report: {path / 'recipe.json'}").score.name
    if result and not _is_number(result.get(name)):
        raise RunError(f"report: {path / 'result.json'} has no number '{name}'; it is not the result of a run")
    weights = path / "best.safetensors"
    return Run(path, recipe, result, tuple(read_rows(path / "metrics.jsonl")), weights if weights.exists() else None)


def read_runs(paths: Sequence[Path]) -> list[Run]:
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


def read_object(path: Path) -> dict[str, Any]:
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
