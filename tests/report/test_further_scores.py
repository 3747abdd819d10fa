"""Further scores of a task: means over seeds, with the number of images."""

from __future__ import annotations

from pathlib import Path

from hamburger.report.page import further_scores
from hamburger.report.study import RunRecord, group_runs


def run(context, seed, **result):
    recipe = {"task": "stereo", "seed": seed, "model": {"context": context}}
    return RunRecord(Path(f"{context}-{seed}"), recipe, {"epe": 3.0, **result} if result else {})


def test_means_over_seeds_and_headings_with_numbers_of_pairs():
    about = {"images": 4, "images_seen": 2, "over_3": 0.25, "over_3_seen": None}
    runs = [run(None, seed, epe_seen=1.0 + seed, **about) for seed in (0, 1)] + [run("nmf", 0)]  # one not finished
    made = str(further_scores(group_runs(runs)))
    assert ">EPE seen by both (2 of 4 pairs), px<" in made and ">1.50<" in made
    assert ">above 3 px, %<" in made and ">25.00<" in made
    assert "above 3 px seen by both" not in made and "above 1 px" not in made  # no run has them


def test_no_table_without_further_scores():
    assert further_scores(group_runs([run(None, 0, images=4)])) == ""
