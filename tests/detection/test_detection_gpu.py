"""Detection on a GPU: half precision, reproducible evaluation, the memory of attention."""

from __future__ import annotations

import pytest
import torch
from small_run import rows

from hamburger.detection.recipe import detection_recipes
from hamburger.tasks import tasks, train
from hamburger.training.recipe import apply
from hamburger_lab.bench import detect
from hamburger_lab.bench.common import model_options

pytestmark = pytest.mark.gpu

SETTINGS = (
    *("model.backbone=resnet18", "model.size=128", "model.max_size=128", "model.channels=64", "model.hidden=128"),
    *("data.options.size=128", "data.options.length=16", "data.crop=128", "batch=4"),
    *("steps=6", "log_every=2", "eval_every=6", "checkpoint_every=3"),
)


@pytest.mark.parametrize(
    "settings", [("precision=bf16",), ("precision=fp16",), ("precision=bf16", "channels_last=true")]
)
def test_every_precision_trains_and_scores_reproducibly(settings, tmp_path):
    recipe = apply(detection_recipes.create("shapes-maskrcnn"), [*SETTINGS, *settings])
    result = train(recipe, tmp_path / "run", accelerator="cuda").values
    assert result["device"] == "cuda" and result["peak_mb"] > 0
    assert all(torch.isfinite(torch.tensor(row["loss"])) for row in rows(tmp_path / "run") if "loss" in row)
    task = tasks["detection"]
    net, info = task.load(tmp_path / "run" / "best.safetensors")
    split = task.split(info, "shapes", "val", None, info.extra["data_options"])
    one, other = (task.evaluate(net.cuda(), split, info, device=torch.device("cuda")) for _ in range(2))
    assert one == other


def test_memory_of_materialised_attention_grows_with_n_squared():
    variants = {name: model_options(name) for name in ("none", "sa-materialised", "efficient")}
    plan = detect.DetectorPlan(
        variants, sizes=(256, 512), backbone="resnet18", after="p2", batch=2, device="cuda", repeats=2, dtype="bfloat16"
    )
    rows = {(row.context, row.size): row for row in detect.measure(plan)}
    assert rows["sa-materialised", 512].n == 4 * rows["sa-materialised", 256].n == 128**2
    assert rows["sa-materialised", 512].context_mb > 2 * 128**4 * 4 / 2**20  # two n x n matrices in float32 at least
    assert rows["sa-materialised", 512].context_mb > 5 * rows["efficient", 512].context_mb
