"""`ham predict RUN --last`: the weights of the last checkpoint, also before the first evaluation."""

from __future__ import annotations

import pytest
import small_tasks
import torch
from PIL import Image
from typer.testing import CliRunner

import hamburger as hb
from hamburger.cli.app import app
from hamburger.errors import CheckpointError, InputError, Interrupted
from hamburger.inference.find_weights import find_weights, write_last_weights
from hamburger.training import checkpoint
from hamburger.training.trainer import Trainer

TASKS = [task for task in small_tasks.SMALL if task != "generation"]


def stop_after(monkeypatch, step, task, run, *settings):
    """Train until `step`; return the weights that the trainer then had."""
    original, weights = Trainer.after_step, {}

    def after(self):
        original(self)
        if self.progress.step == step:
            weights.update({name: value.clone() for name, value in self.net.state_dict().items()})
            self.interrupt()

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Trainer, "after_step", after)
        small_tasks.train(task, run, *settings)
    return weights


@pytest.mark.parametrize("task", TASKS)
def test_last_weights_are_those_of_the_stopped_run(task, tmp_path, monkeypatch):
    run = tmp_path / "run"
    expected = stop_after(monkeypatch, 2, task, run, "eval_every=4")
    with pytest.raises(InputError, match=r"no best\.safetensors yet.*`ham predict .*run --last`"):
        find_weights(run)
    net = hb.load(write_last_weights(run))
    assert net.info.extra["step"] == 2 and not net.training
    actual = net.state_dict()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


def test_predict_writes_labels_of_a_run_without_an_evaluation(tmp_path, monkeypatch):
    stop_after(monkeypatch, 1, "segmentation", tmp_path / "run", "eval_every=4")
    Image.new("RGB", (24, 16)).save(tmp_path / "a.png")
    arguments = ["predict", tmp_path / "run", tmp_path / "a.png", "--out", tmp_path / "out", "--last"]
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "out" / "a.png") as label:
        assert label.size == (24, 16)


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(InputError, match=r"has no checkpoint; --last takes the folder of a run"):
        write_last_weights(tmp_path)


@pytest.mark.parametrize("change", [{"info": None}, {"info": "{}"}, {"model": {"w": 3}}, {"model": None}])
def test_a_checkpoint_without_a_description_is_refused(tmp_path, monkeypatch, change):
    stop_after(monkeypatch, 1, "classification", tmp_path / "run")
    loaded = checkpoint.load(tmp_path / "run")
    checkpoint.save(loaded.path, {**loaded.state, **change})
    with pytest.raises(CheckpointError, match=r"last\.ckpt does not describe"):
        write_last_weights(tmp_path / "run")
    assert not (tmp_path / "run" / "last.safetensors").exists()
