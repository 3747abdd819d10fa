"""The training of a stereo network as a value, in the same form as that of a segmentation network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hamburger.recipes.base import AdamOptim, SupervisedTraining
from hamburger.registry import Registry


@dataclass(frozen=True)
class StereoModel:
    """Keywords of `create_stereo`."""

    width: int = 32
    volume: str = "correlation"  # or "concatenation"
    groups: int = 8
    volume_width: int = 16
    max_disparity: int = 128
    context: str | None = "nmf"
    context_options: dict[str, Any] = field(default_factory=dict)
    place: str = "features"  # or "volume"
    gate: str | None = "zero"


@dataclass(frozen=True)
class StereoData:
    name: str = "planes"
    options: dict[str, Any] = field(default_factory=dict)
    train_split: str = "train"
    val_split: str = "val"
    crop: tuple[int, int] = (256, 512)  # height, width
    flip: bool = False  # upside down, half of the pairs
    photometric: float = 0.0  # both images alike
    workers: int = 4
    resident: str = "auto"  # keep the whole set on the device: "auto", "yes" or "no"


@dataclass(frozen=True)
class StereoRecipe(SupervisedTraining):
    """A stereo network."""

    task: str = "stereo"  # by which a recipe.json is known
    model: StereoModel = field(default_factory=StereoModel)
    data: StereoData = field(default_factory=StereoData)
    optim: AdamOptim = field(default_factory=AdamOptim)
    eval_every: int = 1_000
    keep: str = "best"  # which weights become best.safetensors: the best on the validation split, or the last


# functions without arguments that return a StereoRecipe
stereo_recipes: Registry[StereoRecipe] = Registry("stereo recipe")
