"""Speed and memory of a training, over all parts of a resumed run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_run import small

from hamburger.errors import HamburgerError, Interrupted
from hamburger.generation.recipe import gan_recipes
from hamburger.generation.train import train_gan
from hamburger.segmentation.recipe import segmentation_recipes
from hamburger.tasks import find_gan_recipe, find_training, train
from hamburger.training import checkpoint, run_lifecycle
from hamburger.training.metrics_log import LossRecord, ThroughputClock
from hamburger.training.train import advise_on_device
from hamburger.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture
def stopped_at_the_end(tmp_path, monkeypatch):
    """A run that was stopped when all steps were made and its result was not written."""
    original = Trainer.after_step

    def after(self):
        original(self)
        if self.progress.step == self.recipe.steps:
            self.saved = None
            self.interrupt()

    monkeypatch.setattr(Trainer, "after_step", after)
    with pytest.raises(Interrupted):
        train(small(), tmp_path / "run", accelerator="cpu")
    monkeypatch.undo()
    return tmp_path / "run"


def test_resumed_run_continues_its_clock(stopped_at_the_end):
    before = checkpoint.load(stopped_at_the_end).state["clock"]
    assert before["images"] == 12 * 4 and before["seconds"] > 0
    values = train(small(), stopped_at_the_end, accelerator="cpu", resume=True).values
    assert values["images_per_s"] == round(before["images_after_warmup"] / before["seconds_after_warmup"], 2)
    assert values["seconds"] == round(before["seconds"], 2)


def test_speed_is_none_after_resuming_on_other_hardware(stopped_at_the_end, monkeypatch):
    monkeypatch.setattr(run_lifecycle, "hardware_name", lambda device: "another")
    values = train(small(), stopped_at_the_end, accelerator="cpu", resume=True).values
    assert values["images_per_s"] is None and values["seconds"] == 0.0


def test_peak_memory_is_the_maximum_over_parts():
    high, clock = 2.0**30, ThroughputClock()
    clock.load({**ThroughputClock().state(CPU, "here"), "peak": high}, "here")
    assert clock.peak_mb(CPU) == high
    fresh = ThroughputClock()
    fresh.load({**ThroughputClock().state(CPU, "here"), "peak": high}, "there")
    assert 0 < fresh.peak_mb(CPU) < high


def test_clock_of_an_older_checkpoint_counts_as_other_hardware():
    clock = ThroughputClock()
    clock.load({"place": "here", "images": 64, "seconds": 2.0, "warm_images": 32, "peak": 1.0}, "here")
    assert clock == ThroughputClock()


def test_first_interval_of_every_part_is_warm_up():
    clock = ThroughputClock(images=64, seconds=2.0, images_after_warmup=32, seconds_after_warmup=1.0)
    clock.start()
    clock.end_interval(32, 0.0)
    assert clock.images == 96 and clock.images_after_warmup == 32
    clock.end_interval(32, 0.0)
    assert clock.images_after_warmup == 64


def test_short_run_has_a_speed_and_empty_run_none():
    clock = ThroughputClock()
    clock.start()
    assert clock.images_per_s is None
    clock.end_interval(32, 0.0)
    clock.end_interval(0, 0.0)  # before an evaluation
    assert clock.images_per_s > 0


def test_a_record_of_losses_grows_with_its_steps():
    """It starts small, whatever `log_every` is: 2^31 steps between two lines would need gigabytes."""
    record, again = LossRecord(CPU), LossRecord(CPU)
    for step in range(200):
        record.add(step, {"ce": torch.tensor(float(step))}, [])
    assert record.global_values().flatten().tolist() == list(range(200))
    again.load(record.state())
    again.add(200, {"ce": torch.tensor(200.0)}, [])
    assert again.global_values().flatten().tolist() == list(range(201))


@pytest.mark.parametrize(
    ("seconds", "says"), [(0.1, []), (10.0, ["about 0:01:50 left"]), (1000.0, ["about 3:03:20 left; use a GPU"])]
)
def test_duration_is_announced_after_the_first_step(tmp_path, monkeypatch, seconds, says):
    monkeypatch.setattr(ThroughputClock, "elapsed", lambda self: seconds)
    notes = []
    train(small(), tmp_path / "run", accelerator="cpu", on_event=lambda event: notes.append(getattr(event, "text", "")))
    announced = [note for note in notes if note.startswith("the first step took")]
    assert len(announced) == len(says) and all(map(str.__contains__, announced, says))


@pytest.mark.parametrize(
    ("name", "recipes", "on_gpu", "advice"),
    [
        ("folder", segmentation_recipes, False, ["folder-cpu"]),
        ("camvid", segmentation_recipes, False, ["folder-cpu, patchwork, patchwork-glyphs"]),
        ("cifar10", gan_recipes, False, ["figures"]),
        ("folder", segmentation_recipes, True, []),
        ("folder-cpu", segmentation_recipes, False, []),
        ("of my own", segmentation_recipes, False, []),
    ],
)
def test_a_recipe_for_a_gpu_names_those_for_a_cpu(name, recipes, on_gpu, advice):
    recipe = replace(recipes[name]() if name in recipes else small(), name=name)
    notes = []
    advise_on_device(recipe, recipes, SimpleNamespace(on_gpu=on_gpu), lambda note: notes.append(note.text))
    expected = [f"the recipe '{name}' is meant for a GPU and runs on a CPU here; for a CPU: {each}" for each in advice]
    assert notes == expected


@pytest.mark.parametrize("call", [train, train_gan])
def test_the_advice_comes_before_the_data_are_read(call, tmp_path):
    notes = []
    recipe = find_training("voc") if call is train else find_gan_recipe("cifar10")
    recipe = recipe if call is train else replace(recipe, graph=False)
    with pytest.raises(HamburgerError, match="none"):
        call(recipe, tmp_path, data=tmp_path / "none", accelerator="cpu", on_event=notes.append)
    assert ["meant for a GPU" in note.text for note in notes] == [True]
