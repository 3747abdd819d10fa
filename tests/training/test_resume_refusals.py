"""What --resume must refuse: other data, flipped bits, weights that are not finite."""

from __future__ import annotations

import pytest
import torch
from small_run import small

from hamburger.errors import CheckpointError, Interrupted, OptionError, ShapeError, TrainingError
from hamburger.segmentation.data import create_dataset
from hamburger.tasks import find_training, train
from hamburger.training import checkpoint
from hamburger.training.datasets import check_classes
from hamburger.training.supervised import Splits
from hamburger.training.trainer import Trainer


@pytest.fixture
def broken_off(tmp_path, monkeypatch):
    """A run that was stopped after 9 of its 12 steps."""
    original = Trainer.after_step

    def after(self):
        original(self)
        if self.progress.step == 9:
            self.interrupt()

    monkeypatch.setattr(Trainer, "after_step", after)
    with pytest.raises(Interrupted):
        train(small(), tmp_path / "run", accelerator="cpu")
    monkeypatch.undo()
    return tmp_path / "run"


def test_resume_with_other_data_raises(broken_off, monkeypatch):
    real = Splits.digest
    monkeypatch.setattr(Splits, "digest", lambda self: real(self) + "0")
    with pytest.raises(CheckpointError, match=r"written with other data.*--set start="):
        train(small(), broken_off, accelerator="cpu", resume=True)


def test_resume_with_a_recipe_of_another_task_raises(broken_off):
    with pytest.raises(CheckpointError, match=r"a recipe of another kind than 'planes-tiny'.*name another folder"):
        train(find_training("planes-tiny"), broken_off, accelerator="cpu", resume=True)


def test_data_digest_depends_on_images_and_classes():
    def sets(**options):
        return Splits(*(create_dataset("patchwork", split, **options) for split in ("train", "val")))

    assert sets().digest() == sets().digest()
    assert sets().digest() != sets(length=7).digest()
    assert sets().digest() != sets(families=4).digest()


def test_flipped_bits_in_a_checkpoint_are_detected(broken_off):
    last = broken_off / checkpoint.LAST
    content = bytearray(last.read_bytes())
    weight = max(checkpoint.load(broken_off).state["model"].values(), key=torch.numel)
    place = content.index(weight.numpy().tobytes())  # numbers, which nothing but a sum protects
    for i in range(place, place + 2):
        content[i] ^= 0x55
    last.write_bytes(content)
    loaded = checkpoint.load(broken_off)
    assert loaded.path.name == checkpoint.PREVIOUS
    assert "last.ckpt is damaged" in loaded.notes[0]


def test_nonfinite_weights_are_not_saved(tmp_path, monkeypatch):
    original = Trainer.train_step

    def poisoned(self, step, parts):
        original(self, step, parts)
        if step == 4:  # after the loss of that step was found to be finite
            next(self.net.parameters()).data.view(-1)[0] = torch.inf

    monkeypatch.setattr(Trainer, "train_step", poisoned)
    run = tmp_path / "run"
    with pytest.raises(
        TrainingError, match=r"not finite.*last good checkpoint is .*last.ckpt, of step 4; begin a new run"
    ):
        train(small("checkpoint_every=1", "log_every=100"), run, accelerator="cpu")
    assert all(torch.isfinite(v).all() for v in checkpoint.load(run).state["model"].values() if v.is_floating_point())


def test_classes_of_weights_and_data_are_compared_by_name():
    data = create_dataset("patchwork", "val")
    check_classes("eval", data.classes, data)
    with pytest.raises(ShapeError, match="the weights know 2 classes"):
        check_classes("eval", ("a", "b"), data)
    with pytest.raises(OptionError, match=f"class 0 is '{data.classes[1]}' to the weights"):
        check_classes("eval", (data.classes[1], data.classes[0], *data.classes[2:]), data)


@pytest.mark.parametrize(
    "change", [{"model": {}}, {"record": 3}, {"progress": {"steps": 1}}, {"random": []}, {"optimizer": None}]
)
def test_a_checkpoint_of_another_shape_is_one_clear_error(change, broken_off):
    last = broken_off / checkpoint.LAST
    torch.save(torch.load(last, weights_only=True) | change, last)
    with pytest.raises(CheckpointError, match=r"last\.ckpt does not hold the state of this run \(\w+: .*start again"):
        train(small(), broken_off, accelerator="cpu", resume=True)
