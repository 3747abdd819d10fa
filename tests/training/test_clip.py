"""Gradients whose norm is bounded: the length of an update of plain SGD is the rate times the norm."""

from __future__ import annotations

import pytest
import torch
from small_run import small

from hamburger.tasks import train
from hamburger.training.trainer import Trainer

RATE = 0.5
PLAIN = (f"optim.lr={RATE}", "optim.momentum=0", "optim.weight_decay=0", "optim.bias_lr=1", "optim.warmup=0", "steps=1")


def update(path, monkeypatch, *settings):
    """What the first step adds to all parameters, as one vector."""
    updates, original = [], Trainer.train_step

    def step(self, number, parts):
        before = [p.detach().clone() for p in self.net.parameters()]
        original(self, number, parts)
        moved = [(p.detach() - b).flatten() for p, b in zip(self.net.parameters(), before, strict=True)]
        updates.append(torch.cat(moved).double())

    monkeypatch.setattr(Trainer, "train_step", step)
    train(small(*PLAIN, *settings), path, accelerator="cpu")
    return updates[0]


@pytest.mark.parametrize("parts", [1, 2])
def test_clipping_shortens_only_long_gradients(tmp_path, monkeypatch, parts):
    settings = f"accumulate={parts}"
    free = update(tmp_path / "free", monkeypatch, settings)
    norm = float(free.norm()) / RATE
    short = update(tmp_path / "short", monkeypatch, settings, f"optim.clip={norm / 4}")
    assert float(short.norm()) == pytest.approx(RATE * norm / 4, rel=1e-4)
    torch.testing.assert_close(short * 4, free, rtol=1e-3, atol=1e-6)
    assert torch.equal(update(tmp_path / "long", monkeypatch, settings, f"optim.clip={norm * 4}"), free)
