"""GAN training on a CUDA device: half precision, CUDA graphs, no synchronisation within a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from small_gan import rows, small

from hamburger.errors import Interrupted
from hamburger.generation import gan_steps, trainer
from hamburger.generation.gan_steps import build_gan
from hamburger.generation.train import train_gan

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("settings", [("precision=bf16", "channels_last=true"), ("precision=fp16",), ("graph=true",)])
def test_every_precision_and_the_graph_train_and_resume(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(gan_steps, "EAGER_STEPS", 3)
    whole = train_gan(small(*settings), tmp_path / "whole", accelerator="cuda")
    original = trainer.GanTrainer.after_step

    def after(self):
        original(self)
        if self.progress.step == 9:
            self.interrupt()

    monkeypatch.setattr(trainer.GanTrainer, "after_step", after)
    with pytest.raises(Interrupted):
        train_gan(small(*settings), tmp_path / "run", accelerator="cuda")
    monkeypatch.setattr(trainer.GanTrainer, "after_step", original)
    result = train_gan(small(*settings), tmp_path / "run", accelerator="cuda", resume=True)
    assert [row["step"] for row in rows(tmp_path / "run")] == [row["step"] for row in rows(tmp_path / "whole")]
    assert result.values["discriminator"] == pytest.approx(whole.values["discriminator"], rel=0.2)


def test_a_graphed_step_matches_an_eager_one(tmp_path, monkeypatch):
    """Random numbers, images, learning rates and updates; at rates so small that rounding does not grow."""
    monkeypatch.setattr(gan_steps, "EAGER_STEPS", 3)
    rates = ("optim.generator_lr=1e-5", "optim.discriminator_lr=1e-5", "optim.decay_from=6")
    recipe = small(*rates, "log_every=1", "average=none")
    train_gan(recipe, tmp_path / "one", accelerator="cuda")
    train_gan(replace(recipe, graph=True), tmp_path / "two", accelerator="cuda")
    for name in ("discriminator", "generator", "real", "made", "spread"):
        one, two = ([row[name] for row in rows(tmp_path / run)] for run in ("one", "two"))
        torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-3)
    first = dict(build_gan(recipe, 4)[0].named_parameters())
    one, two = (load_file(tmp_path / run / "generator.safetensors") for run in ("one", "two"))
    updates = [torch.cat([(w[name] - p.detach()).flatten() for name, p in first.items()]) for w in (one, two)]
    assert updates[0].norm() > 0
    assert (updates[1] - updates[0]).norm() < 0.1 * updates[0].norm()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_step_does_not_synchronise(tmp_path, monkeypatch):
    original = trainer.GanTrainer.train_step

    def strict(self, step, batches):
        torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")
        try:
            original(self, step, batches)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(trainer.GanTrainer, "train_step", strict)
    train_gan(small("precision=bf16"), tmp_path, accelerator="cuda")
