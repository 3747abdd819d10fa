"""On a GPU: gradient strategies compared during a training."""

from __future__ import annotations

import pytest
from small_run import SETTINGS, small

from hamburger.tasks import train
from hamburger.training.recipe import apply
from hamburger.training.train import train as train_task
from hamburger_lab.ablations.gradient_angles import AngleTask, find_angle_recipe

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_gradient_angles_on_a_gpu_do_not_change_training(precision, tmp_path):
    recipe = apply(find_angle_recipe("patchwork"), [*SETTINGS, "angles_every=5", f"precision={precision}"])
    measured = train_task(AngleTask(), recipe, tmp_path / "measured", accelerator="cuda")
    series = measured.values["angles"]
    assert [row["step"] for row in series] == [0, 5, 10]
    assert all(-1.001 <= row["cosine_input_one_step"] <= 1.001 and row["norm_weights_bptt"] > 0 for row in series)
    plain = train(small(f"precision={precision}"), tmp_path / "plain", accelerator="cuda")
    assert measured.values["loss"] == pytest.approx(plain.values["loss"], rel=0.05)
