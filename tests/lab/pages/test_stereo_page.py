"""Tables of stereo results: best first, paired differences, one column per real pair."""

from __future__ import annotations

from hamburger_lab.pages.stereo import real_pairs_table, stereo_table

ABOUT = {"recipe": "planes", "steps": 5, "batch": 2, "precision": "32", "protocol": "full size", "images": 3}
ABOUT |= {"hardware": "here", "torch": "2", "commit": "c", "images_per_s": 10.0, "peak_mb": 1024.0, "epe_seen": 0.5}
ABOUT |= {"epe_pair_mean": 0.75, "images_seen": 3}
RUNS = (("none", 2.0), ("nmf", 1.5))


def test_best_context_comes_first_with_paired_difference():
    rows = [
        {**ABOUT, "context": context, "seed": seed, "epe": epe + seed / 10, "over_1": 0.5, "over_3": 0.25}
        for seed in range(3)
        for context, epe in RUNS
    ]
    table = stereo_table(rows).splitlines()
    assert [line.split(" | ")[0] for line in table[2:4]] == ["| nmf", "| none"]
    assert table[2] == "| nmf | 1.600 | 0.100 | -0.500 | -0.500 ... -0.500 | 50.0 | 25.0 | 0.750 | 0.500 | 10 | 1,024 |"
    assert table[3].startswith("| none | 2.100 | 0.100 |  |  |")
    assert "seeds 0, 1, 2" in table[-1] and stereo_table([]) == "No rows yet."


def test_real_pairs_have_a_column_each():
    rows = [
        {**ABOUT, "context": None if context == "none" else context, "epe": epe, "over_3": 0.1, "data": "middlebury"}
        | {"per_pair": {"aloe": epe + 1, "cones": epe - 1}, "options": {"shrink": 2}, "shrink": 2}
        for context, epe in RUNS
    ]
    table = real_pairs_table(rows).splitlines()
    further = "EPE mean over pairs, px | EPE seen by both, px"
    assert table[0] == f"| context | aloe, px | cones, px | all pixels, px | {further} | > 3 px, % | seeds |"
    assert table[2] == "| nmf | 2.50 | 0.50 | 1.50 | 0.75 | 0.50 | 10.0 | 1 |" and "shrink=2" in table[-1]
    assert real_pairs_table([]) == "No rows yet."


def test_errors_at_two_sizes_have_separate_tables():
    row = {**ABOUT, "context": "nmf", "over_3": 0.1, "data": "middlebury"}
    whole = {**row, "epe": 4.0, "per_pair": {"aloe": 4.0}, "shrink": 1}
    small = {**row, "epe": 1.0, "per_pair": {"aloe": 1.0}, "shrink": 4, "options": {"shrink": 4}}
    small |= {"protocol": "at 1/4 of the size, in pixels of that size"}
    lines = real_pairs_table([small, whole]).splitlines()
    assert [line for line in lines if line.startswith("| nmf")] == [
        "| nmf | 4.00 | 4.00 | 0.75 | 0.50 | 10.0 | 1 |",
        "| nmf | 1.00 | 1.00 | 0.75 | 0.50 | 10.0 | 1 |",
    ]
    assert "(full size)" in lines[4] and "(at 1/4 of the size, in pixels of that size)" in lines[-1]


def test_mean_over_some_pairs_names_their_number():
    row = {**ABOUT, "context": "nmf", "seed": 0, "epe": 1.0, "over_1": 0.5, "over_3": 0.1, "images_seen": 2}
    row |= {"data": "middlebury", "per_pair": {"aloe": 1.0}, "shrink": 1}
    for table in stereo_table([row]), real_pairs_table([row]):
        assert "| EPE seen by both (2 of 3 pairs), px |" in table.splitlines()[0]
