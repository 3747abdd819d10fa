"""A GAN run of one second, with every part that is random or has state."""

from __future__ import annotations

import json

from hamburger.generation.recipe import gan_recipes
from hamburger.generation.train import train_gan
from hamburger.training.recipe import apply

SETTINGS = (
    "model.resolution=16",
    "model.latent=6",
    "model.width=8",
    'model.options={"generator_multipliers": [2, 2, 2], "discriminator_multipliers": [2, 2], "norm_momentum": 0.1}',
    "model.context_options.steps=2",
    "data.options.length=24",
    "data.flip=true",
    "batch=4",
    "steps=12",
    "log_every=5",
    "sample_every=6",
    "checkpoint_every=4",
    "average=0.9",
    "average_from=3",
)
MEASURED = ("images_per_s", "seconds_per_step", "peak_mb", "data_wait", "seconds", "date", "commit")


def small(*settings):
    return apply(gan_recipes.create("figures"), [*SETTINGS, *settings])


def train_small(run, *settings, resume=False, on_event=lambda event: None):
    return train_gan(small(*settings), run, accelerator="cpu", resume=resume, on_event=on_event)


def reproducible_outputs(run):
    """What two equal runs must have in common, bit by bit: metrics, result, weights and samples."""
    result = json.loads((run / "result.json").read_text())
    for name in MEASURED:
        result.pop(name)
    grids = {path.name: path.read_bytes() for path in (run / "samples").iterdir()}
    return (run / "metrics.jsonl").read_text(), result, (run / "generator.safetensors").read_bytes(), grids


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
