"""`ham gan` from the command line."""

from __future__ import annotations

import json
import sys

import pytest

from hamburger.cli import gan, main
from hamburger.generation.weights import load_generator, save_generator

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
    monkeypatch.setattr("hamburger.generation.predict.ROWS_SHOWN", 2)
    status, out, err = ham("gan", "sample", run, "--out", tmp_path / "made", "--count", 2)
    assert status == 0 and "note: classes.png has the first 2 of 4 classes; --classes selects others" in err
    assert len(list((tmp_path / "made" / "images").iterdir())) == 2
    words = ("--extractor", "my_means:Means", "--size", 8, "--samples", 20, "--compared", 16, "--device", "cpu")
    status, out, err = ham("gan", "fid", run, *words, "--json", tmp_path / "fid.json")
    assert status == 0, err
    assert out.startswith("frechet[Means@8]") and "FID" not in out
    result = json.loads((tmp_path / "fid.json").read_text())
    assert result["fake_images"] == 20 and result["extractor"].startswith("Means@8") and result["seed"] == 3
    words = ("--extractor", "mine_alone:Means", "--size", 8, "--samples", 20, "--device", "cpu")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert ham("gan", "fid", run, *words)[0] == 0, "a module in the current folder is found"
    monkeypatch.chdir(tmp_path)
    status, _, err = ham("gan", "sample", run, "--out", tmp_path / "x", "--classes", "disk")
    assert status == 2 and err == (
        "ham: gan sample: no class 'disk' among numbers 0 ... 3; did you mean 'disc'? "
        "known: cross, disc, ring, square\n"
    )
    status, _, err = ham("gan", "sample", run, "--out", tmp_path / "fid.json")
    assert status == 2 and "is a file; give a folder" in err
    generator, info = load_generator(run / "generator.safetensors")
    save_generator(tmp_path / "bare.safetensors", generator, info.classes)
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
    assert status == 2 and "has no recipe.json; give a run folder" in err
    (run / "samples" / "step-00000003.png").write_bytes(b"half an image")
    status, _, err = ham("gan", "report", run)
    assert status == 2 and "step-00000003.png" in err and "Traceback" not in err
    (run / "samples" / "step-00000003.png").unlink()
    status, _, err = ham("report", run, "--out", tmp_path / "wrong.html")
    assert status == 2 and "ham gan report" in err
    status, out, err = ham("gan", "train", "figures", "--run", run, "--seed", 3, *SET, "--resume")
    assert status == 0 and "finished" in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train", "figurs", "--run", "RUN"], "did you mean 'figures'"),
        (["train", "cifar10", "--run", "RUN"], "--data DIR"),
        (["train", "cifar10", "--run", "RUN", "--data", "NOWHERE"], "NOWHERE"),
        (["train", "figures", "--run", "RUN", "--set", "model.context=sagn"], "did you mean 'sagan'"),
        (["train", "figures", "--run", "RUN", "--set", "optim.lr=1"], "no field 'optim.lr'"),
        (["train", "figures", "--run", "RUN", "--devices", "3"], "--set batch=33"),
        (["train", "figures", "--run", "RUN", "--accelerator", "tpu"], "accelerator"),
        (["sample", "NOWHERE", "--out", "RUN"], "NOWHERE"),
        (["sample", "NOWHERE", "--out", "RUN", "--truncation", "-1"], "truncation"),
        (["fid", "NOWHERE"], "NOWHERE"),
        (["fid", "NOWHERE", "--samples", "1"], "samples"),
        (["report", "NOWHERE"], "NOWHERE"),
    ],
)
def test_errors_take_one_line(ham, tmp_path, words, complaint):
    status, out, err = ham("gan", *(str(tmp_path / "run") if word == "RUN" else word for word in words))
    assert (status, out) == (2, "")
    assert complaint in err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "recipe.json").exists()


@pytest.mark.parametrize("name", ["fid", "grid", "report"])
def test_some_commands_are_part_of_the_lab(ham, monkeypatch, name):
    commands = [command for command in gan.app.registered_commands if command.name != name]
    monkeypatch.setattr(gan.app, "registered_commands", commands)
    status, _, err = ham("gan", name, "figures")
    assert (status, err) == (
        2,
        f"ham: `ham gan {name}` is part of hamburger-lab; run pip install -e lab in your clone of hamburger\n",
    )
