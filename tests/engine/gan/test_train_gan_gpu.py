"""GAN trainings on a CUDA device: half precision, recorded steps, no wait for the device in a step."""

from __future__ import annotations

import pytest
import torch
from small_gan import rows, small

from hamburger.engine.gan import graph, loop
from hamburger.engine.gan.train import train_gan
from hamburger.errors import Interrupted

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("settings", [("precision=bf16", "channels_last=true"), ("precision=fp16",), ("graph=true",)])
def test_every_way_trains_and_resumes(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "WARMUP", 3)
    whole = train_gan(small(*settings), tmp_path / "whole", accelerator="cuda")
    original = loop.GanLoop.after_step

    def after(self):
        original(self)
        if self.progress.step == 9:
            self.interrupt()

    monkeypatch.setattr(loop.GanLoop, "after_step", after)
    with pytest.raises(Interrupted):
        train_gan(small(*settings), tmp_path / "run", accelerator="cuda")
    monkeypatch.setattr(loop.GanLoop, "after_step", original)
    result = train_gan(small(*settings), tmp_path / "run", accelerator="cuda", resume=True)
    assert [row["step"] for row in rows(tmp_path / "run")] == [row["step"] for row in rows(tmp_path / "whole")]
    assert result.values["discriminator"] == pytest.approx(whole.values["discriminator"], rel=0.2)


def test_a_recorded_step_is_the_step(tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "WARMUP", 3)
    settings = ("log_every=1", "optim.decay_from=6", "average=none")
    train_gan(small(*settings), tmp_path / "one", accelerator="cuda")
    train_gan(small(*settings, "graph=true"), tmp_path / "two", accelerator="cuda")
    for name in ("discriminator", "generator"):
        one, two = ([row[name] for row in rows(tmp_path / run)] for run in ("one", "two"))
        torch.testing.assert_close(two, one, rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_step_does_not_wait_for_the_device(tmp_path, monkeypatch):
    original = loop.GanLoop.train_step

    def strict(self, step, draws):
        torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")
        try:
            original(self, step, draws)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(loop.GanLoop, "train_step", strict)
    train_gan(small("precision=bf16"), tmp_path, accelerator="cuda")
