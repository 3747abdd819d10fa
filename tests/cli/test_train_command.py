"""`ham train` and `ham eval`, in process."""

from __future__ import annotations

import json
import sys

import pytest

SMALL = [
    *("data.options.size=16", "data.options.length=12", "data.crop=16", "model.backbone_options.width=4"),
    *("model.head_options.width=8", "batch=4", "steps=4", "log_every=2", "eval_every=2", "optim.warmup=0"),
]
SET = [word for setting in SMALL for word in ("--set", setting)]


def test_train_evaluate_and_train_again(ham, tmp_path):
    run = tmp_path / "run"
    status, out, err = ham("train", "patchwork", "--run", run, "--seed", 3, "--accelerator", "cpu", *SET)
    assert status == 0, err
    result = json.loads((run / "result.json").read_text())
    assert (result["seed"], result["steps"]) == (3, 4)
    assert f"mIoU {100 * result['miou']:.2f} % (single scale) after 4 steps" in out
    assert "step 2 of 4: loss" in err and "images/s" in err and "waiting for data" in err

    status, out, err = ham("eval", run, "--json", tmp_path / "a.json", "--device", "cpu")
    assert status == 0, err
    scores = json.loads((tmp_path / "a.json").read_text())
    assert scores["miou"] == result["best_miou"]
    assert (scores["protocol"], scores["step"], scores["images"]) == ("single scale", result["best_step"], 12)
    assert all(name in out for name in scores["per_class"])

    status, out, err = ham(
        "eval", run / "best.safetensors", "--scales", "0.5,1", "--flip", "--window", 16, "--device", "cpu"
    )
    assert status == 0, err
    assert "scales 0.5,1, flip, window 16/11" in out

    status, out, err = ham("train", "patchwork", "--run", run, "--seed", 3, "--accelerator", "cpu", *SET)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and "--resume" in err
    status, out, err = ham("train", "patchwork", "--run", run, "--seed", 3, *SET, "--resume")
    assert status == 0 and "finished" in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train", "pachwork", "--run", "RUN"], "did you mean 'patchwork'"),
        (["train", "patchwork", "--run", "RUN", "--set", "optim.lrr=1"], "did you mean optim.lr?"),
        (["train", "patchwork", "--run", "RUN", "--set", "model.context=nfm"], "did you mean 'nmf'"),
        (["train", "patchwork", "--run", "RUN", "--seed", "-1"], "seed"),
        (["train", "patchwork", "--run", "RUN", "--devices", "3"], "--set batch=18"),
        (["train", "patchwork", "--run", "RUN", "--accelerator", "tpu"], "accelerator"),
        (["train", "voc", "--run", "RUN"], "--data DIR"),
        (["train", "voc", "--run", "RUN", "--data", "NOWHERE"], "NOWHERE"),
        (["train", "patchwork"], "--run"),
        (["eval", "NOWHERE"], "NOWHERE"),
        (["eval", "NOWHERE", "--scales", "many"], "scales"),
    ],
)
def test_errors_are_one_line(ham, tmp_path, words, complaint):
    status, out, err = ham(*(str(tmp_path / "run") if word == "RUN" else word for word in words))
    assert (status, out) == (2, "")
    assert complaint in err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_a_missing_extra_is_named(ham, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    status, _, err = ham("train", "patchwork", "--run", tmp_path, *SET)
    assert status == 2 and "run pip install 'hamburger[train]', in a clone pip install -e '.[train]'" in err
