"""Committed rows, by file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hamburger.errors import DataError
from hamburger.files import read_json_lines

Row = dict[str, Any]
GENERATED = "patchwork"  # recipes that begin so are scenes of our own
SCORED = {"recipe", "seed", "steps", "hardware"}
SCORES = {"ablation_": SCORED | {"cell"}, "segmentation_": SCORED | {"context"}}
COSTS = {
    "gradients_": {"ham", "grad", "n", "steps", "hardware", "ms", "ms_iqr", "mb", "refused", "repeats"}
    | {"d", "r", "b", "dtype"},
    "table3_h": {"module", "dtype", "n", "hardware", "infer_ms", "train_ms", "infer_mb", "train_mb"},
}
NEEDED = SCORES | COSTS
WRITERS = {"gradients_": "`ham bench gradients` writes", "table3_h": "`ham bench table3` writes"}
# what is reckoned with: nothing may stand there for a number but null
NUMBERS = {"miou", "seed", "steps", "step", "n", "ms", "ms_iqr", "mb", "peak_mb", "parameters", "repeats"}
FAMILIES = ("rank", "numerical_", "silent_", "cosine_", "norm_", "spectrum_", "bound", "positions", "channels")
MEASURED = ("infer_ms", "train_ms", "infer_mb", "train_mb")  # and their quartiles
STUDY = {"input", "ham", "temperature", "seed", "L_h", "L_G", "bound", "through sweeps", "settled at", "rate", "dy/dh0"}
# what a run may be told without another score at its last step, and what is read from the row itself
SILENT = ("steps=", "keep=", "eval_every=", "checkpoint_every=", "model.context=", "model.context_options.")


class Results:
    """Rows of every file of a folder of results, by its name without the ending. Never written to."""

    def __init__(self, files: Mapping[str, list[Row]], studies: Mapping[str, Row] | None = None) -> None:
        self.files = dict(files)
        self.studies = dict(studies or {})  # of .json files: one object each

    @classmethod
    def of(cls, folder: Path) -> Results:
        lines = {path.stem: read_json_lines(path, "claims") for path in sorted(folder.glob("*.jsonl"))}
        for name, rows in lines.items():
            path = folder / f"{name}.jsonl"
            kind = next((prefix for prefix in NEEDED if name.startswith(prefix)), None)
            if kind is None:
                continue
            for number, row in enumerate(rows, start=1):
                if missing := NEEDED[kind] - row.keys():
                    writer = WRITERS.get(kind, "`ham ablate` and `ham compare` write")
                    raise DataError(
                        f"claims: line {number} of {path} has no {', '.join(sorted(missing))}; "
                        f"{writer} such rows, other files need another name"
                    )
                all_numbers(row, f"line {number} of {path}")
            if kind in SCORES:
                one_experiment(rows, path)
        studies = [path for path in sorted(folder.glob("*.json")) if path.stem != "claims"]
        return cls(lines, {path.stem: read_study(path) for path in studies})

    def beginning(self, prefix: str) -> dict[str, list[Row]]:
        """Files of that kind that have rows. Photographs, which decide, come before generated scenes."""
        had = {name: rows for name, rows in self.files.items() if name.startswith(prefix) and rows}
        return dict(sorted(had.items(), key=lambda file: generated(file[1][0])))


def all_numbers(row: Row, where: str) -> None:
    """Refuse words, NaN and infinities where a number is reckoned with."""
    for name, value in row.items():
        if name == "angles":
            for one in value or ():
                all_numbers(one, where)
        if name not in NUMBERS and not name.startswith((*FAMILIES, *MEASURED)):
            continue
        for one in value if isinstance(value, list) else [value]:
            number = isinstance(one, (int, float)) and not isinstance(one, bool)
            if one is not None and not (number and math.isfinite(one)):
                raise DataError(f"claims: {where}: {name} is {one!r}, not a number; mend the row or make it again")


def read_study(path: Path) -> Row:
    """One object; a study of the propositions has what its claims ask for."""
    try:
        study = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise DataError(f"claims: {path} is no JSON; make it again, or take it away") from None
    if path.stem.startswith("propositions_"):
        rows = study.get("rows") if isinstance(study, dict) else None
        if not isinstance(rows, list) or "hardware" not in study.get("environment", {}):
            raise DataError(f"claims: {path} is no study of `ham propositions`; other files need another name")
        for number, row in enumerate(rows, start=1):
            if missing := STUDY - set(row):
                raise DataError(f"claims: row {number} of {path} has no {', '.join(sorted(missing))}; make it again")
    return dict(study) if isinstance(study, dict) else {}


def generated(row: Row) -> bool:
    """Whether a row is of scenes of our own, which decide nothing beside photographs."""
    return str(row.get("recipe", "")).startswith(GENERATED)


def settings(row: Row) -> tuple[str, ...]:
    """What a person changed in the recipe for all runs of a file, as far as it may change a score."""
    told = row["settings"] if "settings" in row else row.get("overrides") or []
    return tuple(sorted(one for one in map(str, told) if not one.startswith(SILENT)))


def cell_of(row: Row) -> str:
    """The name of what was run: grids call it a cell, comparisons of contexts a context."""
    return str(row.get("cell", row.get("context")))


def collapsed(row: Row) -> bool:
    """Whether a network answers one class alone: no other reaches a tenth."""
    scores = (row.get("per_class") or {}).values()
    return len(scores) > 1 and sum(score is not None and score >= 0.1 for score in scores) <= 1


def one_experiment(rows: list[Row], path: Path) -> None:
    """Refuse rows that no comparison may mix: other recipes, steps or settings, or one cell and seed of two recipes."""
    for what, read in MIXED.items():
        kinds = list(dict.fromkeys(read(row) for row in rows))
        if len(kinds) > 1:
            raise DataError(f"claims: {path} mixes {what}: {kinds[0]} and {kinds[1]}; a file holds runs of one kind")
    hashes: dict[tuple[str, Any], Any] = {}
    for row in rows:
        cell = cell_of(row), row["seed"]
        if hashes.setdefault(cell, row.get("recipe_hash")) != row.get("recipe_hash"):
            raise DataError(
                f"claims: {path} has {cell[0]}, seed {cell[1]} twice, of two recipes ({hashes[cell]} and "
                f"{row.get('recipe_hash')}); keep the rows of one"
            )


MIXED: dict[str, Callable[[Row], object]] = {
    "recipes": lambda row: row["recipe"],
    "numbers of steps": lambda row: row["steps"],
    "settings": lambda row: " ".join(settings(row)) or "none",
}


def by_seed(rows: list[Row], key: str, name: str, field: str, scale: float) -> dict[int, float]:
    """A field of the rows whose `key` is `name`, by seed."""
    return {row["seed"]: scale * row[field] for row in rows if row.get(key) == name and row.get(field) is not None}
