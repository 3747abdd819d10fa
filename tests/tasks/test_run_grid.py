"""Grids of runs, with small processes in place of training."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest

from hamburger.errors import OptionError, UnknownNameError
from hamburger.tasks.sweep import Cell, GridError, cells, process_environment, run_grid, variants
from hamburger.training.recipe import to_json

WORK = """
import json, pathlib, sys, time
run, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
run.mkdir(parents=True, exist_ok=True)
with (run / "starts.txt").open("a") as file:
    file.write(f"{time.time()}\\n")
if seed == 13:
    sys.exit("the loss is not finite")
time.sleep(0.3)
(run / "ended.txt").write_text(str(time.time()))
(run / "result.json").write_text(json.dumps({"miou": seed / 10, "seed": seed, "steps": 5}))
"""


def stand_in(cell, out, data):
    return [sys.executable, "-c", WORK, str(out / cell.name), str(cell.seed)]


def starts(out, cell):
    return [float(line) for line in (out / cell.name / "starts.txt").read_text().split()]


def test_grid_combines_every_variant_with_every_seed():
    grid = cells("patchwork", {"baseline": ("batch=1",), "nmf": ()}, [0, 1], ["steps=3"])
    assert [cell.name for cell in grid] == ["baseline-seed0", "nmf-seed0", "baseline-seed1", "nmf-seed1"]
    assert grid[0].overrides == ("steps=3", "batch=1")
    with pytest.raises(OptionError, match="give each seed once"):
        cells("patchwork", {"nmf": ()}, [1, 1], [])


def test_cell_command_is_a_ham_train_command(tmp_path):
    cell = Cell("nmf", "patchwork", 3, ("model.context=nmf",))
    words = cell.command(tmp_path, tmp_path / "images")
    assert words[1:] == [
        *("-m", "hamburger", "train", "patchwork", "--run", str(tmp_path / "nmf-seed3"), "--seed", "3"),
        *("--set", "model.context=nmf", "--data", str(tmp_path / "images")),
    ]
    (tmp_path / cell.name).mkdir()
    (tmp_path / cell.name / "recipe.json").write_text("{}")
    assert cell.command(tmp_path, None)[-1] == "--resume"


def test_rows_come_in_order_and_finished_runs_are_skipped(tmp_path):
    grid = cells("patchwork", {"a": (), "b": ()}, [1, 2], [])
    rows = run_grid(grid, tmp_path, jobs=2, command=stand_in)
    assert [(row["context"], row["seed"], row["miou"]) for row in rows] == [
        *(("a", 1, 0.1), ("b", 1, 0.1), ("a", 2, 0.2), ("b", 2, 0.2)),
    ]
    (tmp_path / "b-seed1" / "result.json").unlink()
    run_grid(grid, tmp_path, command=stand_in)
    assert [len(starts(tmp_path, cell)) for cell in grid] == [1, 2, 1, 1]


def test_invalid_or_changed_recipe_raises_before_any_run(tmp_path):
    with pytest.raises(OptionError, match="no field 'stepz'"):
        run_grid(cells("patchwork", {"a": ("stepz=3",)}, [1], []), tmp_path, command=stand_in)
    old, new = (cells("patchwork", {"a": ()}, [1], [f"steps={steps}"]) for steps in (7, 9))
    (tmp_path / "a-seed1").mkdir()
    (tmp_path / "a-seed1" / "recipe.json").write_text(to_json(old[0].resolved()))
    with pytest.raises(OptionError, match=r"made with another recipe \(steps"):
        run_grid(new, tmp_path, command=stand_in)
    assert not (tmp_path / "a-seed1" / "starts.txt").exists()
    run_grid(old, tmp_path, command=stand_in)


def test_jobs_run_concurrently(tmp_path):
    grid = cells("patchwork", {"a": (), "b": (), "c": ()}, [1], [])
    run_grid(grid, tmp_path, jobs=2, command=stand_in)
    first_two = [starts(tmp_path, cell)[0] for cell in grid[:2]]
    ended = [float((tmp_path / cell.name / "ended.txt").read_text()) for cell in grid]
    assert max(first_two) < min(ended[:2]), "two at once"
    assert starts(tmp_path, grid[2])[0] > min(ended[:2]), "never three"


@pytest.mark.parametrize("jobs", [1, 2])
def test_done_callback_blocks_the_next_run_only_with_one_job(tmp_path, jobs):
    grid = cells("patchwork", {"a": (), "b": (), "c": ()}, [1], [])
    begun = []

    def noted(cell, out, data):
        begun.append(cell.variant)
        return stand_in(cell, out, data)

    first = []
    run_grid(grid, tmp_path, jobs=jobs, command=noted, done=lambda cell: first.append((cell.variant, len(begun))))
    assert sorted(variant for variant, _ in first) == ["a", "b", "c"]
    assert first[0] == ("a", 1) if jobs == 1 else first[0][1] == 3


def test_failed_run_is_named_and_others_continue(tmp_path):
    grid = cells("patchwork", {"a": ()}, [13, 1], [])
    with pytest.raises(GridError, match=r"1 of 2 runs failed.*a-seed13 \(exit 1\): the loss is not finite"):
        run_grid(grid, tmp_path, command=stand_in)
    assert json.loads((tmp_path / "a-seed1" / "result.json").read_text())["seed"] == 1


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_interrupt_is_passed_to_running_processes(tmp_path, sign):
    def patient(cell, out, data):
        code = (
            "import pathlib, signal, sys, time\n"
            "def save(*_):\n    pathlib.Path(sys.argv[1]).write_text('saved')\n    sys.exit(130)\n"
            "signal.signal(signal.SIGTERM, save)\ntime.sleep(60)\n"
        )
        return [sys.executable, "-c", code, str(out / "saved.txt")]

    begun = time.monotonic()

    def interrupt(made, steps, runs):
        if time.monotonic() - begun > 1:
            os.kill(os.getpid(), sign)

    with pytest.raises(KeyboardInterrupt):
        run_grid([Cell("a", "patchwork", 0)], tmp_path, command=patient, progress=interrupt)
    assert (tmp_path / "saved.txt").read_text() == "saved"
    assert time.monotonic() - begun < 30


def test_progress_counts_the_steps_of_all_runs(tmp_path):
    work = WORK.replace("time.sleep(0.3)", """(run / "metrics.jsonl").write_text('{"step": 3}\\n'); time.sleep(0.5)""")
    grid = cells("patchwork", {"a": (), "b": (), "c": ()}, [1], ["steps=5"])
    (tmp_path / "a-seed1").mkdir()
    (tmp_path / "a-seed1" / "result.json").write_text('{"seed": 1}')  # of an earlier call
    seen = []

    def command(cell, out, data):
        return [sys.executable, "-c", work, str(out / cell.name), str(cell.seed)]

    run_grid(grid, tmp_path, command=command, progress=lambda *state: seen.append(state))
    expected = [(5, "1"), (8, "1"), (10, "2"), (13, "2"), (15, "3")]
    assert list(dict.fromkeys(seen)) == [(made, 15, f"{ended} of 3 runs") for made, ended in expected]


def test_variants_are_contexts_baseline_and_breads():
    settings = variants(["baseline", "breads", "nmf", "da"])
    assert settings["baseline"] == ("model.context=none",)
    assert settings["da"] == ("model.context=da",)
    with pytest.raises(UnknownNameError, match="did you mean 'baseline'"):
        variants(["baselin"])


def test_concurrent_runs_use_the_plain_backend(monkeypatch):
    monkeypatch.delenv("HAM_BACKEND", raising=False)
    assert process_environment(2)["HAM_BACKEND"] == "plain"
    assert "HAM_BACKEND" not in process_environment(1)
    monkeypatch.setenv("HAM_BACKEND", "fused")
    assert process_environment(2)["HAM_BACKEND"] == "fused"
