"""Committed rows, by file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hamburger.errors import DataError
from hamburger.files import read_json_lines

Row = dict[str, Any]
SCORED = {"recipe", "seed", "steps", "hardware"}
NEEDED = {"ablation_": SCORED | {"cell"}, "segmentation_": SCORED | {"context"}}
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
            needed = next((keys for prefix, keys in NEEDED.items() if name.startswith(prefix)), set())
            for number, row in enumerate(rows, start=1):
                if missing := needed - row.keys():
                    raise DataError(
                        f"claims: line {number} of {path} has no {', '.join(sorted(missing))}; "
                        f"`ham ablate` and `ham compare` write such rows, other files need another name"
                    )
            if needed:
                one_experiment(rows, path)
        studies = [path for path in sorted(folder.glob("*.json")) if path.stem != "claims"]
        return cls(lines, {path.stem: json.loads(path.read_text()) for path in studies})

    def beginning(self, prefix: str) -> dict[str, list[Row]]:
        return {name: rows for name, rows in self.files.items() if name.startswith(prefix) and rows}


def settings(row: Row) -> tuple[str, ...]:
    """What a person changed in the recipe for all runs of a file, as far as it may change a score."""
    told = row["settings"] if "settings" in row else row.get("overrides") or []
    return tuple(sorted(one for one in map(str, told) if not one.startswith(SILENT)))


def one_experiment(rows: list[Row], path: Path) -> None:
    """Refuse rows that no comparison may mix: other recipes, steps or settings, or one cell and seed of two recipes."""
    for what, read in MIXED.items():
        kinds = list(dict.fromkeys(read(row) for row in rows))
        if len(kinds) > 1:
            raise DataError(f"claims: {path} mixes {what}: {kinds[0]} and {kinds[1]}; a file holds runs of one kind")
    hashes: dict[tuple[str, Any], Any] = {}
    for row in rows:
        cell = str(row.get("cell", row.get("context"))), row["seed"]
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
