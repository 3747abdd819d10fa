"""Columns of scores over seeds, compared with scipy; tables of classification."""

from __future__ import annotations

import numpy as np
import pytest

from hamburger_lab.pages import classification
from hamburger_lab.pages.comparison import format_field_mean, format_seeds, ranked_cells, scores_by_context

SCORES = {"none": {0: 70.0, 1: 71.5, 2: 69.0, 3: 72.0}, "nmf": {0: 72.0, 1: 72.5, 2: 72.0, 4: 10.0}, "sa": {7: 71.0}}


def row(context, seed, score, **more):
    about = {"recipe": "cifar10-classes", "backbone": "resnet18", "steps": 10, "batch": 4, "precision": "fp32"}
    about |= {"protocol": "top-1, one view", "images": 1000, "hardware": "X", "torch": "2", "commit": "abc"}
    costs = {"images_per_s": 100.0, "peak_mb": 2000.0}
    return {"context": context, "seed": seed, "accuracy": score, **about, **costs, **more}


def test_means_spreads_and_paired_intervals():
    stats = pytest.importorskip("scipy.stats")
    cells = ranked_cells(SCORES, 2)
    assert list(cells) == ["sa", "none", "nmf"]  # the highest mean first
    assert cells["none"] == ["70.62", f"{np.std([70, 71.5, 69, 72], ddof=1):.2f}", "", ""]
    shared = np.array([2.0, 1.0, 3.0])  # seeds 0, 1, 2
    low, high = stats.t.interval(0.95, 2, shared.mean(), stats.sem(shared))
    assert cells["nmf"][2:] == ["+2.00", f"{low:+.2f} ... {high:+.2f}"]
    assert cells["sa"] == ["71.00", "", "", ""]  # one seed, which no other context has


def test_lower_is_better_sorts_ascending_without_reference():
    assert list(ranked_cells(SCORES, 1, lower_is_better=True)) == ["nmf", "none", "sa"]
    assert ranked_cells({"nmf": SCORES["nmf"]}, 1)["nmf"][2:] == ["", ""]
    assert ranked_cells({"baseline": {0: 1.0}, "nmf": {0: 2.0}}, 1)["nmf"][2] == "+1.0"
    assert ranked_cells({"none": {0: 1.0}, "nmf": {0: 0.999}}, 1)["nmf"][2] == "+0.0"  # and not -0.0


def test_seeds_are_sorted_and_missing_fields_skipped():
    assert format_seeds({2: 1.0, 0: 3.0}, 1) == "3.0, 1.0"
    assert scores_by_context([{"context": None, "seed": 3, "x": 2}], lambda row: row["x"]) == {"none": {3: 2}}
    assert (
        format_field_mean([{"a": 1.0}, {"a": None}, {"a": 2.0}], "a", ".2f"),
        format_field_mean([{}], "a", ".2f"),
    ) == ("1.50", "")


def test_classification_table_has_scores_and_costs():
    rows = [row("none", seed, 0.7 + seed / 100) for seed in range(3)]
    rows += [row("nmf", seed, 0.72 + seed / 100, images_per_s=80.0, peak_mb=2400.0) for seed in range(3)]
    page = classification.classification_table(rows)
    assert "| nmf | 73.00 | 1.00 | +2.00 | +2.00 ... +2.00 | 80 | 2,400 |" in page
    assert page.index("| nmf |") < page.index("| none |") and "1,000 images" in page and "seeds 0, 1, 2" in page
    assert classification.classification_table([]) == "No rows yet."
