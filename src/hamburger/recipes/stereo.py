"""Depth from two images: the post on decomposed attention names this task."""

from __future__ import annotations

from dataclasses import replace

from hamburger.recipes.base import AdamOptim
from hamburger.recipes.stereo_base import StereoData, StereoModel, StereoRecipe, stereo_recipes


@stereo_recipes.register("planes-tiny")
def planes_tiny() -> StereoRecipe:
    """The embedded default: generated planes of 64 x 128, seconds on two cores."""
    return StereoRecipe(
        name="planes-tiny",
        model=StereoModel(width=16, groups=4, volume_width=8, max_disparity=32),
        # what the network answers ends one step of its volume, 4 pixels, before its largest disparity
        data=StereoData(options={"max_disparity": 28, "length": 64}, crop=(64, 128), workers=0),
        optim=AdamOptim(lr=3e-3, warmup=10),
        batch=4,
        steps=150,
        eval_every=50,
        checkpoint_every=50,
    )


@stereo_recipes.register("planes")
def planes() -> StereoRecipe:
    """Generated planes in crops of 256 x 512, minutes on one GPU; the features have 64 x 128 positions."""
    return StereoRecipe(
        name="planes",
        model=StereoModel(width=64),
        data=StereoData(
            options={"height": 288, "width": 576, "planes": 8, "max_disparity": 124}, flip=True, photometric=0.2
        ),
        optim=AdamOptim(warmup=100),
        batch=16,
        steps=2_000,
        precision="bf16",
        eval_every=1_000,
        checkpoint_every=500,
    )


@stereo_recipes.register("sceneflow")
def sceneflow() -> StereoRecipe:
    """SceneFlow as cost-volume networks are usually trained on it: 10 epochs, 12 crops at once, a constant rate."""
    base = planes()
    return replace(
        base,
        name="sceneflow",
        model=replace(base.model, volume_width=32, max_disparity=192),
        data=StereoData(name="sceneflow"),
        optim=AdamOptim(power=0.0),
        batch=12,
        steps=29_500,
        eval_every=5_900,
        checkpoint_every=1_000,
    )
