"""A run that is over in a second: four convolutions, small scenes, every part that draws or remembers."""

from __future__ import annotations

import json

from hamburger.segmentation.recipe import segmentation_recipes
from hamburger.training.recipe_io import apply
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


def found(run):
    """Everything that two equal runs share to the last bit."""
    result = json.loads((run / "result.json").read_text())
    for name in (*MEASURED, "commit"):  # somebody may commit while the tests run
        result.pop(name)
    return (run / "metrics.jsonl").read_text(), result, (run / "best.safetensors").read_bytes()


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
