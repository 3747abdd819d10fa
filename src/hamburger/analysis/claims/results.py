"""Committed rows, by file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Results:
    """Rows of every file of a folder of results, by its name without the ending. Never written to."""

    def __init__(self, files: Mapping[str, list[Row]], studies: Mapping[str, Row] | None = None) -> None:
        self.files = dict(files)
        self.studies = dict(studies or {})  # of .json files: one object each

    @classmethod
    def of(cls, folder: Path) -> Results:
        lines = {
            path.stem: [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted(folder.glob("*.jsonl"))
        }
        studies = [path for path in sorted(folder.glob("*.json")) if path.stem != "claims"]
        return cls(lines, {path.stem: json.loads(path.read_text()) for path in studies})

    def beginning(self, prefix: str) -> dict[str, list[Row]]:
        return {name: rows for name, rows in self.files.items() if name.startswith(prefix) and rows}


def by_seed(rows: list[Row], key: str, name: str, field: str, scale: float) -> dict[int, float]:
    """A field of the rows whose `key` is `name`, by seed."""
    return {row["seed"]: scale * row[field] for row in rows if row.get(key) == name and row.get(field) is not None}
