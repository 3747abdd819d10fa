"""A run of every task in about a second: few steps, with a log line, an evaluation and a checkpoint among them."""

from __future__ import annotations

import json

import small_gan
import small_run

from hamburger.generation.recipe import GanRecipe
from hamburger.generation.train import train_gan
from hamburger.tasks import find_training
from hamburger.tasks import train as train_supervised
from hamburger.training.recipe import apply
from hamburger.training.run_folder import MEASURED

STEPS = ("steps=4", "log_every=2", "eval_every=2", "checkpoint_every=3")
MEASURED_GAN = (*MEASURED, "seconds_per_step")
SMALL = {
    "segmentation": lambda: small_run.small("data.options.length=8", "optim.warmup=0"),
    "classification": lambda: apply(find_training("figures-classes"), ["data.options.length=16", "batch=8"]),
    "detection": lambda: apply(
        find_training("shapes-detect"),
        [
            *("model.size=64", "model.max_size=64", "model.channels=16", "model.hidden=32", "model.sampled=32"),
            *("model.proposals=50", "data.options.size=64", "data.options.length=4", "data.crop=64", "batch=2"),
            *("data.scales=0.8,1.25", "optim.warmup=0"),
        ],
    ),
    "stereo": lambda: apply(
        find_training("planes-tiny"),
        [
            *("data.options.height=32", "data.options.width=64", "data.options.max_disparity=12"),
            *("data.options.length=4", "data.crop=24,48", "data.flip=true", "data.photometric=0.2", "model.width=8"),
            *("model.groups=2", "model.volume_width=2", "model.max_disparity=16", "batch=2"),
        ],
    ),
    "generation": lambda: small_gan.small("sample_every=2"),
}


def small(task, *settings):
    return apply(SMALL[task](), [*(s for s in STEPS if task != "generation" or "eval" not in s), *settings])


def train(task, run, *settings, **options):
    """Start the run, or resume it where the folder holds one."""
    recipe = small(task, *settings)
    run_training = train_gan if isinstance(recipe, GanRecipe) else train_supervised
    return run_training(recipe, run, accelerator="cpu", resume=(run / "recipe.json").exists(), **options)


def reproducible_outputs(run):
    """What two equal runs must have in common, bit by bit: metrics, result, weights and samples."""
    result = json.loads((run / "result.json").read_text())
    for name in (*MEASURED_GAN, "commit"):  # the commit may change while the tests run
        result.pop(name, None)
    files = [*run.glob("*.safetensors"), *run.glob("samples/*")]
    return (run / "metrics.jsonl").read_text(), result, {path.name: path.read_bytes() for path in files}
