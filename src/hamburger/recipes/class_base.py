"""The training of an image classifier as a value, in the same form as that of a segmentation network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hamburger.recipes.base import Optim, SupervisedTraining
from hamburger.registry import Registry


@dataclass(frozen=True)
class Classifier:
    """Keywords of `create_classifier`: a network of timm, and the context that is put into it."""

    backbone: str = "resnet18"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    context: str | None = "nmf"
    context_options: dict[str, Any] = field(default_factory=dict)
    after: str = "layer3"  # the submodule that the context follows
    gate: str | None = "zero"
    stem: str = "timm"  # or "small": the first stride of 4 taken out, for images of 32 or 64 pixels
    pretrained: bool = False  # timm's weights


@dataclass(frozen=True)
class Pictures:
    """An image set with a class each: those that generators are trained on."""

    name: str = "figures"
    options: dict[str, Any] = field(default_factory=dict)
    train_split: str = "train"
    val_split: str = "val"
    size: int = 32
    flip: bool = True  # mirror half of the images
    workers: int = 4
    resident: str = "auto"  # keep the whole set on the device: "auto", "yes" or "no"


@dataclass(frozen=True)
class ClassRecipe(SupervisedTraining):
    """A classifier."""

    task: str = "classes"  # by which a recipe.json is known
    model: Classifier = field(default_factory=Classifier)
    data: Pictures = field(default_factory=Pictures)
    optim: Optim = field(default_factory=Optim)
    eval_every: int = 1_000
    keep: str = "best"  # which weights become best.safetensors: the best on the validation split, or the last


# functions without arguments that return a ClassRecipe
class_recipes: Registry[ClassRecipe] = Registry("classification recipe")
