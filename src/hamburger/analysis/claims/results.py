"""Committed rows, by file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hamburger.errors import DataError
from hamburger.files import read_json_lines

Row = dict[str, Any]
SCORED = {"recipe", "seed", "steps", "hardware"}
NEEDED = {"ablation_": SCORED | {"cell"}, "segmentation_": SCORED | {"context"}}


class Results:
    """Rows of every file of a folder of results, by its name without the ending. Never written to."""

    def __init__(self, files: Mapping[str, list[Row]], studies: Mapping[str, Row] | None = None) -> None:
        self.files = dict(files)
        self.studies = dict(studies or {})  # of .json files: one object each

    @classmethod
    def of(cls, folder: Path) -> Results:
        lines = {path.stem: read_json_lines(path, "claims") for path in sorted(folder.glob("*.jsonl"))}
        for name, rows in lines.items():
            needed = next((keys for prefix, keys in NEEDED.items() if name.startswith(prefix)), set())
            for number, row in enumerate(rows, start=1):
                if missing := needed - row.keys():
                    raise DataError(
                        f"claims: line {number} of {folder / name}.jsonl has no {', '.join(sorted(missing))}; "
                        f"`ham ablate` and `ham compare` write such rows, other files need another name"
                    )
        studies = [path for path in sorted(folder.glob("*.json")) if path.stem != "claims"]
        return cls(lines, {path.stem: json.loads(path.read_text()) for path in studies})

    def beginning(self, prefix: str) -> dict[str, list[Row]]:
        return {name: rows for name, rows in self.files.items() if name.startswith(prefix) and rows}


def by_seed(rows: list[Row], key: str, name: str, field: str, scale: float) -> dict[int, float]:
    """A field of the rows whose `key` is `name`, by seed."""
    return {row["seed"]: scale * row[field] for row in rows if row.get(key) == name and row.get(field) is not None}
