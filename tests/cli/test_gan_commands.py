"""`ham gan` from the command line."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from PIL import Image

from hamburger.cli import gan_measure, main
from hamburger.generation.weights import GeneratorInfo, load_generator, save_generator
from hamburger.tasks.sweep import GanCell, GridError

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


def test_train_sample_measure_and_report(ham, tmp_path, monkeypatch):
    run = tmp_path / "run"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine_alone.py").write_text(MODULE)
    status, out, err = ham("gan", "train", "figures", "--run", run, "--seed", 3, "--accelerator", "cpu", *SET)
    assert status == 0, err
    assert "4 steps, context hamgan" in out and "images/s" in err and "left" in err
    assert json.loads((run / "result.json").read_text())["seed"] == 3
    status, out, err = ham("gan", "sample", run, "--out", tmp_path / "made", "--count", 3, "--truncation", 0.8)
    assert status == 0, err
    assert {"images", "sheet.png", "classes.png", "interpolations.png", "samples.json"} == {
        path.name for path in (tmp_path / "made").iterdir()
    }
    assert "note:" not in err
    monkeypatch.setattr("hamburger.generation.samples.ROWS_SHOWN", 2)
    status, out, err = ham("gan", "sample", run, "--out", tmp_path / "made", "--count", 2)
    assert status == 0 and "note: classes.png has the first 2 of 4 classes; --classes selects others" in err
    assert len(list((tmp_path / "made" / "images").iterdir())) == 2
    words = ("--extractor", "my_means:Means", "--size", 8, "--samples", 20, "--choice", 16, "--device", "cpu")
    status, out, err = ham("gan", "fid", run, *words, "--json", tmp_path / "fid.json")
    assert status == 0, err
    assert out.startswith("frechet[Means@8]") and "FID" not in out
    found = json.loads((tmp_path / "fid.json").read_text())
    assert found["fake_images"] == 20 and found["extractor"].startswith("Means@8") and found["seed"] == 3
    words = ("--extractor", "mine_alone:Means", "--size", 8, "--samples", 20, "--device", "cpu")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert ham("gan", "fid", run, *words)[0] == 0, "a module in the current folder is found"
    monkeypatch.chdir(tmp_path)
    status, _, err = ham("gan", "sample", run, "--out", tmp_path / "x", "--classes", "disk")
    assert (status, err) == (
        2,
        "ham: gan sample: no class 'disk'; did you mean 'disc'? known: cross, disc, ring, square\n",
    )
    status, _, err = ham("gan", "sample", run, "--out", tmp_path / "fid.json")
    assert status == 2 and "is a file; give a folder" in err
    generator, info = load_generator(run / "generator.safetensors")
    save_generator(tmp_path / "bare.safetensors", generator, GeneratorInfo(info.classes))
    status, _, err = ham("gan", "fid", tmp_path / "bare.safetensors", *words)
    assert status == 2 and err.startswith("ham: gan fid:") and "which images it was trained on" in err
    status, out, err = ham("gan", "report", run)
    assert status == 0, err
    page = (run / "report.html").read_text()
    assert all(name in page for name in load_generator(run / "generator.safetensors")[1].classes[:2])
    assert all(words in page for words in ("Hinge losses", "step 4", "atom 1", "seconds_per_step"))
    (run / "samples" / "step-best.png").touch()  # a file of the user
    assert ham("gan", "report", run)[0] == 0
    status, _, err = ham("gan", "report", run / "generator.safetensors")
    assert status == 2 and "has no recipe.json, so it is no run" in err
    (run / "samples" / "step-00000003.png").write_bytes(b"half an image")
    status, _, err = ham("gan", "report", run)
    assert status == 2 and "step-00000003.png" in err and "Traceback" not in err
    (run / "samples" / "step-00000003.png").unlink()
    status, _, err = ham("report", run, "--out", tmp_path / "wrong.html")
    assert status == 2 and "ham gan report" in err
    status, out, err = ham("gan", "train", "figures", "--run", run, "--seed", 3, *SET, "--resume")
    assert status == 0 and "finished" in err


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


def test_a_grid_trains_measures_and_appends(ham, tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    words = ["gan", "grid", "figures", "--out", tmp_path / "runs", "--contexts", "none,ylg", "--seeds", "0", *SET]
    words += ["--extractor", "my_means:Means", "--size", 32, "--samples", 20, "--choice", 16]
    words += ["--device", "cpu", "--json", rows]
    status, out, err = ham(*words, "--jobs", 2)
    assert status == 0, err
    found = sorted((json.loads(line) for line in rows.read_text().splitlines()), key=lambda each: each["context"])
    assert [each["context"] for each in found] == ["none", "ylg"]  # rows are in the order in which runs finished
    assert all({"frechet", "kid", "seconds_per_step", "peak_mb", "hardware", "commit"} <= each.keys() for each in found)
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
    assert all(again[each["context"]]["extractor"] == each["extractor"] for each in found)
    assert all(again[each["context"]]["frechet"] != each["frechet"] for each in found)
    result = tmp_path / "runs" / "ylg-seed0" / "result.json"
    trained = json.loads(result.read_text())
    assert trained["data_sha256"] == found[1]["data_sha256"] and trained["split"] == "train"
    result.write_text(json.dumps({**trained, "data_sha256": "0" * 64}))
    status, _, err = ham(*words)
    assert status == 2 and "ylg-seed0 was trained on other images (sha256 000000000000)" in err
    assert len(rows.read_text().splitlines()) == 2
    shutil.rmtree(tmp_path / "runs")
    status, out, err = ham(*words)  # rows without run folders
    assert status == 0 and "ylg" in out, err
    assert not (tmp_path / "runs" / "ylg-seed0").exists()
    # rows of a changed recipe do not count
    kept = [{**each, "recipe_hash": "before"} if each["context"] == "ylg" else each for each in found]
    rows.write_text("".join(json.dumps(each) + "\n" for each in kept))

    def asked(waiting, *_, **__):
        raise GridError(f"gan grid: to run: {[cell.name for cell in waiting]}")

    monkeypatch.setattr(gan_measure, "run_grid", asked)
    status, _, err = ham(*words)
    assert status == 2 and "to run: ['ylg-seed0']" in err


@pytest.mark.full
def test_an_interrupted_grid_keeps_the_rows_of_finished_runs(ham, tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    words = ["gan", "grid", "figures", "--out", tmp_path / "runs", "--contexts", "none,ylg", "--seeds", "0", *SET]
    words += ["--extractor", "my_means:Means", "--samples", 20, "--choice", 16, "--device", "cpu", "--json", rows]
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
        (["train", "figurs", "--run", "RUN"], "did you mean 'figures'"),
        (["train", "cifar10", "--run", "RUN"], "--data DIR"),
        (["train", "cifar10", "--run", "RUN", "--data", "NOWHERE"], "NOWHERE"),
        (["train", "figures", "--run", "RUN", "--set", "model.context=sagn"], "did you mean 'sagan'"),
        (["train", "figures", "--run", "RUN", "--set", "optim.lr=1"], "no field 'lr'"),
        (["train", "figures", "--run", "RUN", "--devices", "3"], "--set batch=33"),
        (["train", "figures", "--run", "RUN", "--accelerator", "tpu"], "accelerator"),
        (["sample", "NOWHERE", "--out", "RUN"], "NOWHERE"),
        (["sample", "NOWHERE", "--out", "RUN", "--truncation", "-1"], "truncation"),
        (["fid", "NOWHERE"], "NOWHERE"),
        (["fid", "NOWHERE", "--samples", "1"], "samples"),
        (["grid", "figures", "--out", "RUN"], "--weights FILE"),
        (["grid", "figures", "--out", "RUN", "--extractor", "my_means:Means", "--contexts", "hamgn"], "hamgan"),
        (["report", "NOWHERE"], "NOWHERE"),
    ],
)
def test_errors_take_one_line(ham, tmp_path, words, complaint):
    status, out, err = ham("gan", *(str(tmp_path / "run") if word == "RUN" else word for word in words))
    assert (status, out) == (2, "")
    assert complaint in err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "recipe.json").exists()
