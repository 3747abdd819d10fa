"""Tables of segmentation results: differences by class; committed rows contain no local paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from hamburger_lab.pages import segmentation
from hamburger_lab.rows import read_json_lines

RESULTS = Path(__file__).parents[3] / "results"
FILES = sorted(RESULTS.glob("segmentation_*.jsonl"))


def row(context, seed, **per_class):
    return {"context": context, "seed": seed, "per_class": per_class}


def cells(page, name):
    line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_classes_are_compared_paired_by_seed():
    rows = [
        row("baseline", 0, sky=0.9, pole=0.0001),
        row("vq", 0, sky=0.8, pole=0.0),
        row("nmf", 0, sky=0.95, pole=0.0),
        row("baseline", 1, sky=0.7, pole=0.0),
        row("vq", 1, sky=0.6, pole=0.0),  # nmf has no second seed: its pair is the first alone
    ]
    page = segmentation.class_table(rows)
    assert cells(page, "class") == ["class", "baseline", "vq", "nmf"]
    assert cells(page, "sky") == ["sky", "80.0 (14.1)", "-10.0", "+5.0"]
    assert cells(page, "pole") == ["pole", "0.0 (0.0)", "+0.0", "+0.0"]  # and not -0.0


def test_one_seed_has_no_spread():
    page = segmentation.class_table([row("baseline", 0, sky=0.5), row("cd", 0, sky=0.25)])
    assert cells(page, "sky") == ["sky", "50.0", "-25.0"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_committed_rows_are_complete_and_contain_no_paths(path):
    rows = read_json_lines(path, "test")
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    seeds = sorted({row["seed"] for row in rows})
    assert [(row["context"], row["seed"]) for row in rows] == [(name, seed) for seed in seeds for name in contexts]
    assert len({tuple(row) for row in rows}) == 1  # the same keys in the same order
    assert not [word for row in rows for word in row["overrides"] if "/" in word]
