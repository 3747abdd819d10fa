"""Rows of `results/gan_*.jsonl`: one training and what its images are worth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hamburger.errors import DataError
from hamburger.files import write_json_lines
from hamburger.metrics.image_sets import Distances

KEY = ("recipe", "context", "seed", "steps", "batch", "extractor", "fake_images", "hardware", "overrides")
# what a row begins with, in this order
FIRST = ("recipe", "context", "seed", "frechet", "extractor", "kid", "seconds_per_step", "peak_mb", "steps")


def row(trained: dict[str, Any], found: Distances, *, real: dict[str, Any], compared: int) -> dict[str, Any]:
    """`trained` is a run's result.json under the name of its variant."""
    # of a training it is bf16 or the like, of images a share: each gets a name of its own
    trained = {**trained, "dtype": trained["precision"]}
    whole = {**trained, **found.row(), **real, "compared_images": compared}
    return {**{name: whole.pop(name) for name in FIRST}, **whole}


def append_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The file with these rows added; an older row of the same run and measure gives way."""
    before: list[dict[str, Any]] = []
    if path.exists():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                before.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                raise DataError(f"gan grid: line {number} of {path} is no row; mend it or name another file") from None
    kept = {_key(each): each for each in before}
    kept.update((_key(each), each) for each in rows)
    write_json_lines(path, kept.values())


def _key(each: dict[str, Any]) -> str:
    return json.dumps([each.get(name) for name in KEY])
