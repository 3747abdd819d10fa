"""`ham gan grid` from the command line."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from PIL import Image

from hamburger.cli import main
from hamburger.tasks.sweep import GridError
from hamburger_lab import gan_grid
from hamburger_lab.gan_grid import GanCell

OPTIONS = '{"generator_multipliers": [8, 8, 8], "discriminator_multipliers": [8, 8], "norm_momentum": 0.1}'
SMALL = [
    *("model.resolution=16", "model.latent=6", "model.width=8", f"model.options={OPTIONS}", "data.options.length=24"),
    *("batch=4", "steps=4", "log_every=2", "sample_every=4", "checkpoint_every=2", "average=none"),
]
SET = [word for setting in SMALL for word in ("--set", setting)]
# mean colours of quarters instead of a network
MODULE = (
    "import torch\nclass Means(torch.nn.Module):\n    def forward(self, x):\n"
    "        return torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)\n"
)


@pytest.fixture
def ham(monkeypatch, capfd, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "my_means.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["ham", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capfd.readouterr()
        return end.value.code, captured.out, captured.err

    return call


def test_a_grid_that_cannot_write_its_rows_does_not_start(ham, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"seed": 0}\nhalf a ro')
    words = ["gan", "grid", "figures", "--extractor", "my_means:Means", "--samples", 20, "--device", "cpu", *SET]
    for more, complaint in (
        (("--out", "runs", "--json", rows), "line 2 of"),
        (("--out", "runs", "--json", rows / "x.jsonl"), "part of its path is a file"),
        (("--out", "runs", "--json", tmp_path), "is a folder; name a file"),
        (("--out", rows), "rows.jsonl is a file; give a folder"),
    ):
        status, _, err = ham(*words, *more)
        assert status == 2 and complaint in err
    (tmp_path / "results").mkdir(exist_ok=True)
    rows.rename(tmp_path / "results" / "gan_figures_cpu.jsonl")
    status, _, err = ham(*words, "--out", "runs")
    assert status == 2 and "line 2 of results" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_a_grid_trains_measures_and_appends(ham, tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    words = ["gan", "grid", "figures", "--out", tmp_path / "runs", "--contexts", "none,ylg", "--seeds", "0", *SET]
    words += ["--extractor", "my_means:Means", "--size", 32, "--samples", 20, "--compared", 16]
    words += ["--device", "cpu", "--json", rows]
    status, out, err = ham(*words, "--jobs", 2)
    assert status == 0, err
    results = sorted((json.loads(line) for line in rows.read_text().splitlines()), key=lambda each: each["context"])
    assert [each["context"] for each in results] == ["none", "ylg"]  # rows are in the order in which runs finished
    assert all(
        {"frechet", "kid", "seconds_per_step", "peak_mb", "hardware", "commit"} <= each.keys() for each in results
    )
    assert "ylg" in out and "frechet[Means@32]" in out
    assert f"wrote {tmp_path / 'runs' / 'samples.png'}, from the top: none, ylg" in " ".join(err.split())
    with Image.open(tmp_path / "runs" / "samples.png") as shown:
        assert shown.size == (16 * 18 - 2, 2 * 18 - 2)
    status, _, err = ham(*words)  # nothing is trained again
    assert status == 0, err
    assert len(rows.read_text().splitlines()) == 2
    weights = tmp_path / "runs" / "none-seed0" / "generator.safetensors"
    kept = weights.rename(tmp_path / "kept")  # its row is in the file, so only the grid of samples needs it
    status, out, err = ham(*words)
    assert status == 0 and "ylg" in out and "from the top: ylg" in " ".join(err.split()), err
    kept.rename(weights)
    other = [*words[:-1], tmp_path / "other.jsonl"]
    changed = MODULE.replace("(x, 2)", "(x * x, 2)")  # the same label, but no version, so nothing is cached
    (tmp_path / "my_means.py").write_text(changed)
    monkeypatch.delitem(sys.modules, "my_means")
    assert ham(*other)[0] == 0
    again = {each["context"]: each for each in map(json.loads, (tmp_path / "other.jsonl").read_text().splitlines())}
    assert all(again[each["context"]]["extractor"] == each["extractor"] for each in results)
    assert all(again[each["context"]]["frechet"] != each["frechet"] for each in results)
    result = tmp_path / "runs" / "ylg-seed0" / "result.json"
    trained = json.loads(result.read_text())
    assert trained["data_sha256"] == results[1]["data_sha256"] and trained["split"] == "train"
    result.write_text(json.dumps({**trained, "data_sha256": "0" * 64}))
    status, _, err = ham(*words)
    assert status == 2 and "ylg-seed0 was trained on other images (sha256 000000000000)" in err
    assert len(rows.read_text().splitlines()) == 2
    shutil.rmtree(tmp_path / "runs")
    status, out, err = ham(*words)  # rows without run folders
    assert status == 0 and "ylg" in out, err
    assert not (tmp_path / "runs" / "ylg-seed0").exists()
    # rows of a changed recipe do not count
    kept = [{**each, "recipe_hash": "before"} if each["context"] == "ylg" else each for each in results]
    rows.write_text("".join(json.dumps(each) + "\n" for each in kept))

    def fail_grid(waiting, *_, **__):
        raise GridError(f"gan grid: to run: {[cell.name for cell in waiting]}")

    monkeypatch.setattr(gan_grid, "run_grid", fail_grid)
    status, _, err = ham(*words)
    assert status == 2 and "to run: ['ylg-seed0']" in err


@pytest.mark.full
def test_an_interrupted_grid_keeps_the_rows_of_finished_runs(ham, tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    words = ["gan", "grid", "figures", "--out", tmp_path / "runs", "--contexts", "none,ylg", "--seeds", "0", *SET]
    words += ["--extractor", "my_means:Means", "--samples", 20, "--compared", 16, "--device", "cpu", "--json", rows]
    command = GanCell.command

    def fails(cell, out, data):
        return command(cell, out, data) if cell.variant == "none" else [sys.executable, "-c", "raise SystemExit(3)"]

    monkeypatch.setattr(GanCell, "command", fails)
    status, _, err = ham(*words)
    assert status == 2 and "ylg-seed0 (exit 3)" in err
    assert [json.loads(line)["context"] for line in rows.read_text().splitlines()] == ["none"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--extractor", "inceptio"], "did you mean 'inception'"),
        (["--extractor", "my_means:Means", "--contexts", "hamgn"], "hamgan"),
    ],
)
def test_errors_take_one_line(ham, tmp_path, words, complaint):
    status, out, err = ham("gan", "grid", "figures", "--out", tmp_path / "run", *words)
    assert (status, out) == (2, "")
    assert complaint in err and "Traceback" not in err
    assert not (tmp_path / "run").exists()
