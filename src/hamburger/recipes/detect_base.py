"""The training of a detector as a value, in the same form as that of a segmentation network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hamburger.recipes.base import Optim, SupervisedTraining
from hamburger.registry import Registry


@dataclass(frozen=True)
class MaskRCNN:
    """Keywords of `create_detector`."""

    backbone: str = "resnet50"
    context: str | None = "nmf"
    context_options: dict[str, Any] = field(default_factory=dict)
    after: str = "p3"  # layer1 ... layer4, p2 ... p5, or submodules by their whole names; several with commas
    gate: str | None = "zero"
    size: int = 800  # of the shorter side, in pixels, as the network sees it
    max_size: int = 1333
    anchor: int = 32  # side of the smallest anchor
    channels: int = 256  # of pyramid and mask head
    hidden: int = 1024  # of the box head
    sampled: int = 512  # boxes of an image that are trained on
    proposals: int = 1000  # boxes of an image that are looked at
    norm: str = "batch"  # or "frozen": as the pretrained weights have it
    frozen: int = 0  # first parts of the encoder that are not trained
    pretrained: str | None = None  # a file for the encoder


@dataclass(frozen=True)
class Scenes:
    """A detection set. Training sees at most `crop` x `crop` pixels of images scaled by a factor from `scales`."""

    name: str = "shapes"
    options: dict[str, Any] = field(default_factory=dict)
    train_split: str = "train"
    val_split: str = "val"
    crop: int = 128
    scales: tuple[float, float] = (1.0, 1.0)
    flip: bool = True
    pad: bool = True  # fill up to the square; without it the network resizes what is smaller to its own size
    workers: int = 4
    resident: str = "auto"  # keep the whole set on the device: "auto", "yes" or "no"


@dataclass(frozen=True)
class DetectionRecipe(SupervisedTraining):
    """A detector with masks."""

    task: str = "detection"  # by which a recipe.json is known
    model: MaskRCNN = field(default_factory=MaskRCNN)
    data: Scenes = field(default_factory=Scenes)
    optim: Optim = field(default_factory=Optim)
    eval_every: int = 2_000
    keep: str = "best"  # which weights become best.safetensors: the best on the validation split, or the last


# functions without arguments that return a DetectionRecipe
detection_recipes: Registry[DetectionRecipe] = Registry("detection recipe")
