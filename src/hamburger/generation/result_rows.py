"""Rows of `results/gan_*.jsonl`: one training and what its images are worth."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hamburger.files import read_json_lines, write_atomically, write_json_lines
from hamburger.generation.metrics.image_sets import Distances

# what makes two rows the same run and measure; runs of one recipe on other images are other runs
KEY = (
    *("recipe", "recipe_hash", "context", "seed", "steps", "batch", "overrides", "hardware"),
    *("data", "split", "data_sha256", "extractor", "fake_images", "compared_images"),
)
# what a row begins with, in this order
FIRST = ("recipe", "context", "seed", "frechet", "extractor", "kid", "seconds_per_step", "peak_mb", "steps")


def row(trained: dict[str, Any], found: dict[str, Any], *, real: dict[str, Any], compared: int) -> dict[str, Any]:
    """`trained` is a run's result.json under the name of its variant, `found` the row of its distances."""
    # of a training it is bf16 or the like, of images a share: each gets a name of its own
    trained = {**trained, "dtype": trained["precision"]}
    whole = {**trained, **found, **real, "compared_images": compared}
    return {**{name: whole.pop(name) for name in FIRST}, **whole}


def kept_distances(run: Path, key: Sequence[Any], measure: Callable[[], Distances]) -> dict[str, Any]:
    """The row of distances that lies in the run under this key, or a new one, which is then kept there.

    The key must hold all that the numbers depend on: generator, real images, extractor, how it is measured.
    """
    text = json.dumps(list(key))
    path = run / f"distances-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if path.exists():
        try:
            kept = json.loads(path.read_text())
            if kept["key"] == text:
                return dict(kept["row"])
        except (ValueError, KeyError, TypeError):
            pass  # half a file of another program: measured again
    found: dict[str, Any] = dict(measure().row())
    write_atomically(path, json.dumps({"key": text, "row": found}).encode())
    return found


def read_rows(path: Path) -> list[dict[str, Any]]:
    """None where there is no file yet."""
    return read_json_lines(path, "gan grid")


def append_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The file with these rows added; an older row of the same run and measure gives way."""
    kept = {_key(each): each for each in read_rows(path)}
    kept.update((_key(each), each) for each in rows)
    write_json_lines(path, kept.values())


def _key(each: dict[str, Any]) -> str:
    return json.dumps([each.get(name) for name in KEY])
