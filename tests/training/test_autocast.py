"""What autocast rounds, and what it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hamburger.detection.recipe import detection_recipes
from hamburger.tasks import train
from hamburger.training.accelerator import Accelerator
from hamburger.training.recipe import apply

SMALL = (
    "model.size=64",
    "model.max_size=64",
    "data.options.size=64",
    "data.options.length=8",
    "data.crop=64",
    "batch=2",
)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x, boxes):
        return {"seen": boxes["corners"], "product": self.linear(x)}


def test_autocast_keeps_inputs_and_rounds_products():
    scaled = Scaled()
    net = Accelerator("cpu", precision="bf16").prepare(scaled)
    x, corners = torch.randn(3, 2), torch.tensor([513.0, 1023.5])
    outputs = net(x, {"corners": corners})
    assert torch.equal(outputs["seen"], corners)
    exact = scaled.linear(x)
    assert outputs["product"].dtype == torch.float32  # as the loss wants it
    assert not torch.equal(outputs["product"], exact)
    torch.testing.assert_close(outputs["product"], exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_detection_trains_in_mixed_precision(precision, tmp_path):
    settings = [*SMALL, "steps=2", "log_every=1", "eval_every=2", "checkpoint_every=2", f"precision={precision}"]
    result = train(
        apply(detection_recipes.create("shapes-detect"), settings), tmp_path / "run", accelerator="cpu"
    ).values
    assert result["precision"] == precision
