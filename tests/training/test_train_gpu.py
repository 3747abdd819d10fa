"""The loop on a CUDA device: half precisions, a stored gradient scaler, no synchronisation in a step."""

from __future__ import annotations

import pytest
import torch
from small_run import rows, small

from hamburger.errors import TrainingError
from hamburger.segmentation.recipe import segmentation_recipes
from hamburger.segmentation.task import SegmentationTask
from hamburger.tasks import train
from hamburger.training import checkpoint
from hamburger.training.recipe import apply
from hamburger.training.trainer import Trainer

pytestmark = pytest.mark.gpu


@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # the compiler's advice is not the run's trouble
@pytest.mark.parametrize("settings", [("precision=bf16", "channels_last=true"), ("precision=fp16",), ("compile=true",)])
def test_every_precision_trains_and_resumes(settings, tmp_path, monkeypatch):
    whole = train(small(*settings), tmp_path / "whole", accelerator="cuda")
    original = Trainer.after_step

    def after(self):
        original(self)
        if self.progress.step == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "after_step", after)
    with pytest.raises(KeyboardInterrupt):
        train(small(*settings), tmp_path / "run", accelerator="cuda")
    monkeypatch.undo()
    if "precision=fp16" in settings:
        assert checkpoint.load(tmp_path / "run").state["precision"]["scale"] > 0
    result = train(small(*settings), tmp_path / "run", accelerator="cuda", resume=True)
    assert result.values["device"] == "cuda"
    assert result.values["peak_mb"] > 0
    assert [row["step"] for row in rows(tmp_path / "run")] == [row["step"] for row in rows(tmp_path / "whole")]
    assert result.values["loss"] == pytest.approx(whole.values["loss"], rel=0.05)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_training_step_does_not_synchronise(tmp_path, monkeypatch):
    original = Trainer.train_step

    def strict(self, step, parts):
        torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")
        try:
            original(self, step, parts)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Trainer, "train_step", strict)
    train(small("precision=bf16"), tmp_path, accelerator="cuda")


def test_nonfinite_loss_is_detected_at_its_step(tmp_path, monkeypatch):
    original = SegmentationTask.losses
    seen = []

    def losses(self, model, part, recipe):
        seen.append(part.ids)
        factor = float("inf") if len(seen) == 3 else 1.0
        return {name: factor * value for name, value in original(self, model, part, recipe).items()}

    monkeypatch.setattr(SegmentationTask, "losses", losses)
    with pytest.raises(TrainingError, match="not finite at step 3"):
        train(small("checkpoint_every=100"), tmp_path, accelerator="cuda")
    assert len(seen) == 5


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_plain_and_fused_backends_train_alike(precision, tmp_path, monkeypatch):
    """200 steps on the embedded data: the curves of plain and fused are as near as two draws of dictionaries are."""

    def curve(backend, run, seed=0):
        monkeypatch.setenv("HAM_BACKEND", backend)
        recipe = apply(
            segmentation_recipes.create("patchwork"),
            [
                "steps=200",
                "log_every=10",
                "eval_every=200",
                "model.context=nmf",
                f"precision={precision}",
                f"seed={seed}",
            ],
        )
        result = train(recipe, tmp_path / run, accelerator="cuda")
        losses = [row["loss"] for row in rows(tmp_path / run) if "loss" in row]
        return torch.tensor(losses), result.values["miou"]

    (plain, score), (fused, other) = curve("plain", "plain"), curve("fused", "fused")
    noise, chance = curve("plain", "seed", seed=1)
    assert len(plain) == len(fused) >= 20
    assert plain[-5:].mean() < 0.8 * plain[:2].mean()  # it learns
    assert (plain - fused).abs().mean() < (plain - noise).abs().mean()
    assert abs(score - other) < max(0.05, 2 * abs(score - chance)), (score, other, chance)
