"""On a GPU: gradient strategies compared during a training, and ranks of contexts."""

from __future__ import annotations

import pytest
import torch
from small_run import small

from hamburger.inspect.evaluation import measure_context
from hamburger.segmentation.model import create_model
from hamburger.tasks import train

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_gradient_angles_on_a_gpu_do_not_change_training(precision, tmp_path):
    measured = train(small("angles_every=5", f"precision={precision}"), tmp_path / "measured", accelerator="cuda")
    series = measured.values["angles"]
    assert [row["step"] for row in series] == [0, 5, 10]
    assert all(-1.001 <= row["cosine_input_one_step"] <= 1.001 and row["norm_weights_bptt"] > 0 for row in series)
    plain = train(small(f"precision={precision}"), tmp_path / "plain", accelerator="cuda")
    assert measured.values["loss"] == pytest.approx(plain.values["loss"], rel=0.05)


@pytest.mark.parametrize("context", ["nmf", "vq", "cd", "sa", "da", "nonlocal"])
def test_effective_ranks_on_a_gpu_match_the_cpu(context):
    torch.manual_seed(0)
    net = create_model("hamnet", backbone="tiny", output_stride=4, num_classes=4, context=context).eval()
    batch = torch.rand(2, 3, 40, 36), torch.randint(0, 4, (2, 40, 36))
    here = measure_context(net, [batch])
    there = measure_context(net.cuda(), [tuple(each.cuda() for each in batch)])
    assert here.keys() == there.keys()
    for key in (key for key in here if key.startswith(("rank_", "silent", "spectrum", "positions"))):
        assert there[key] == pytest.approx(here[key], rel=0.05, abs=0.02), key
