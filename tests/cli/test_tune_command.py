"""`ham tune`, in process, with trainings that write given scores."""

from __future__ import annotations

import json

import pytest

from hamburger.tasks import tune
from hamburger.tasks.sweep import finished

SCORES = {"none": 0.5, "nmf-rank4-k2-random": 0.75, "nmf-rank4-k6-random": 0.6, "pooling": 0.55, "sa": 0.4}


def run_grid(grid, folder, *, data, progress, call, done=lambda cell: None):
    for cell in grid:
        run = folder / cell.name
        run.mkdir(parents=True)
        (run / "timings.jsonl").write_text(json.dumps({"step": 20, "images_per_s": 1000.0}) + "\n")
        (run / "result.json").write_text(json.dumps({"accuracy": SCORES.get(cell.variant, 0.1), "seconds": 2.0}))
        assert finished(cell, folder)
        done(cell)
        progress(1, 1, "all")


def test_tune_prints_a_table_and_the_next_command(ham, monkeypatch, tmp_path):
    monkeypatch.setattr(tune, "run_grid", run_grid)
    out = tmp_path / "out"
    grid = ("--candidates", "nmf,pooling,sa", "--ranks", "4", "--inits", "random", "--minutes", "5", "--data", "DIR")
    status, shown, err = ham("tune", "figures-classes", "--out", out, *grid, "--set", "steps=60", "--seed", 3)
    assert status == 0, err
    lines = [line.strip("│ ").split("│") for line in shown.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["sa", "1", "20", "1", "40.00", "2"],
        ["pooling", "1", "20", "1", "55.00", "2"],
        ["none", "2", "60", "3", "50.00", "6"],
        ["nmf-rank4-k6-random", "2", "60", "3", "60.00", "6"],
        ["nmf-rank4-k2-random", "2", "60", "3", "75.00", "6"],
    ]
    assert "note: nmf-rank4-k2-random is better than none: accuracy +25.00 points" in shown
    assert f"ham train {out / 'recipe.json'} --run RUN --data DIR" in err
    recipe = json.loads((out / "recipe.json").read_text())
    assert recipe["model"]["context_options"] == {"rank": 4, "steps": 2, "init": "random"}
    assert (recipe["steps"], recipe["seed"]) == (60, 3)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--ranks", "many"], "tune: ranks must be comma-separated whole numbers (got 'many')"),
        (["--ham-steps", "2,"], "tune: ham steps must be comma-separated whole numbers"),
        (["--candidates", "pooling,eficient"], "tune: no context 'eficient'; did you mean 'efficient'"),
        (["--minutes", "-1"], "tune: minutes must be a finite number above 0"),
    ],
)
def test_mistakes_are_one_line(ham, tmp_path, words, complaint):
    status, shown, err = ham("tune", "figures-classes", "--out", tmp_path / "out", *words)
    assert (status, shown) == (2, "") and err.count("\n") == 1 and complaint in err
    assert not (tmp_path / "out").exists()
