"""A segmentation run of one second: four convolutions, small scenes, every part that is random or has state."""

from __future__ import annotations

import json

from hamburger.segmentation.recipe import segmentation_recipes
from hamburger.training.recipe import apply
from hamburger.training.run_folder import MEASURED

SETTINGS = (
    "data.options.size=16",
    "data.options.length=24",
    "data.crop=16",
    "data.scales=0.5,2",
    "data.flip=true",
    "model.backbone_options.width=4",
    "model.head_options.width=8",
    "model.context_options.rank=2",
    "model.context_options.steps=2",
    "batch=4",
    "steps=12",
    "log_every=5",
    "eval_every=6",
    "checkpoint_every=4",
    "optim.warmup=2",
)


def small(*settings):
    return apply(segmentation_recipes.create("patchwork"), [*SETTINGS, *settings])


def reproducible_outputs(run):
    """What two equal runs must have in common, bit by bit: metrics, result and weights."""
    result = json.loads((run / "result.json").read_text())
    for name in (*MEASURED, "commit"):  # the commit may change while the tests run
        result.pop(name)
    return (run / "metrics.jsonl").read_text(), result, (run / "best.safetensors").read_bytes()


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
