"""Classification recipes: a timm network with a context inserted, or a hamformer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hamburger.classification.model import STEMS
from hamburger.errors import OptionError, check_choice, check_count, check_flag
from hamburger.registry import Registry
from hamburger.training.recipe import (
    ADDED_LATER,
    DataOptions,
    Optim,
    SupervisedTraining,
    check_supervised,
    check_two_at_once,
)


@dataclass(frozen=True)
class ClassifierModel:
    """Keywords of `create_classifier`: a timm network and the context inserted into it, or a hamformer and its mixer.

    `after`, `gate`, `stem` and `pretrained` belong to timm's networks.
    """

    backbone: str = "resnet18"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    context: str | None = "nmf"
    context_options: dict[str, Any] = field(default_factory=dict)
    after: str = "layer3"  # the submodule after which the context is inserted
    gate: str | None = "zero"
    stem: str = "timm"  # or "small": without the first stride of 4, for images of 32 or 64 pixels
    pretrained: bool = False  # timm's weights


@dataclass(frozen=True)
class ClassificationData(DataOptions):
    """An image-class data set; generation trains on the same ones."""

    name: str = "figures"
    size: int = 32
    # black pixels added on every side before a random crop of the original size
    padding: int = field(default=0, metadata={ADDED_LATER: True})


@dataclass(frozen=True)
class ClassificationRecipe(SupervisedTraining):
    """A classifier."""

    task: str = "classification"  # identifies the task of a recipe.json
    model: ClassifierModel = field(default_factory=ClassifierModel)
    data: ClassificationData = field(default_factory=ClassificationData)
    optim: Optim = field(default_factory=Optim)
    eval_every: int = 1_000
    keep: str = "best"  # which weights become best.safetensors: the best on the validation split, or the last


# functions without arguments that return a ClassificationRecipe
classification_recipes: Registry[ClassificationRecipe] = Registry("classification recipe")


@classification_recipes.register("figures-classes")
def figures_classes() -> ClassificationRecipe:
    """The default: four generated shapes of 32 x 32, seconds on two CPU cores; the context sees 8 x 8 positions.

    Device: CPU. Duration: seconds.
    """
    return ClassificationRecipe(
        name="figures-classes",
        model=ClassifierModel(
            backbone="resnet10t",
            backbone_options={"stem_width": 8, "channels": [32, 32, 64, 64]},
            after="layer1",  # 32 channels; layer3 has only 2 x 2 positions, fewer than a ham has atoms
        ),
        data=ClassificationData(name="figures", options={"length": 512}, flip=False, workers=0),
        optim=Optim(lr=0.05, weight_decay=1e-4, bias_lr=1.0, warmup=5),
        batch=32,
        steps=120,
        eval_every=40,
        checkpoint_every=40,
    )


@classification_recipes.register("cifar10-classes")
def cifar10_classes() -> ClassificationRecipe:
    """CIFAR-10, ResNet-18 with a small stem, 30 epochs; the context sees 8 x 8 positions.

    Device: GPU. Duration: minutes.
    """
    return ClassificationRecipe(
        name="cifar10-classes",
        # the standard stem would leave the context only 2 x 2 positions
        model=ClassifierModel(backbone="resnet18", stem="small"),
        data=ClassificationData(name="cifar10", val_split="test"),
        optim=Optim(lr=0.1, weight_decay=5e-4, bias_lr=1.0, warmup=200),
        batch=128,
        steps=11_700,
        precision="bf16",
        channels_last=True,
        eval_every=1_170,
        checkpoint_every=1_170,
    )


@classification_recipes.register("tiny-imagenet-classes")
def tiny_imagenet_classes() -> ClassificationRecipe:
    """Tiny-ImageNet, or some classes of it, at 64 pixels; the context sees 16 x 16 positions.

    Device: GPU. Duration: minutes.
    """
    return replace(
        cifar10_classes(),
        name="tiny-imagenet-classes",
        data=ClassificationData(name="tiny-imagenet", size=64),
        steps=4_000,
        eval_every=400,
        checkpoint_every=400,
    )


# -- transformers: `ham compare` trains the same network with attention, linear attention, hams and pooling ------------


@classification_recipes.register("hamformer-figures")
def hamformer_figures() -> ClassificationRecipe:
    """A transformer of hams with two blocks of 32 channels, on four generated shapes: seconds on two CPU cores.

    Device: CPU. Duration: seconds.
    """
    return replace(
        figures_classes(),
        name="hamformer-figures",
        model=ClassifierModel(
            backbone="hamformer_tiny", backbone_options={"embed_dim": 32, "depth": 2, "mlp_ratio": 2}
        ),
        optim=Optim(kind="adamw", lr=3e-3, weight_decay=0.05, bias_lr=1.0, warmup=10, clip=1.0),
    )


@classification_recipes.register("hamformer-cifar10")
def hamformer_cifar10() -> ClassificationRecipe:
    """CIFAR-10, `hamformer_tiny` with NMF: 12 blocks of 192 channels on 8 x 8 patches, 60 epochs.

    Device: GPU.
    """
    return ClassificationRecipe(
        name="hamformer-cifar10",
        model=ClassifierModel(backbone="hamformer_tiny"),
        data=ClassificationData(name="cifar10", val_split="test", padding=4),
        optim=Optim(kind="adamw", lr=1e-3, weight_decay=0.05, bias_lr=1.0, warmup=1_000, clip=1.0),
        batch=128,
        steps=23_400,
        precision="bf16",
        channels_last=True,
        eval_every=2_340,
        checkpoint_every=2_340,
    )


@classification_recipes.register("hamformer-tiny-imagenet")
def hamformer_tiny_imagenet() -> ClassificationRecipe:
    """Tiny-ImageNet, or some classes of it, at 64 pixels: `hamformer_tiny` with NMF on 16 x 16 patches.

    Device: GPU.
    """
    return replace(
        hamformer_cifar10(),
        name="hamformer-tiny-imagenet",
        data=ClassificationData(name="tiny-imagenet", size=64, padding=8),
        steps=8_000,
        eval_every=800,
        checkpoint_every=800,
    )


def check_classification_recipe(recipe: ClassificationRecipe, *, processes: int = 1) -> None:
    """Raise OptionError for the first invalid field; `processes` share the batch."""
    call = check_supervised(recipe, processes=processes)
    check_choice(call, "task", recipe.task, ("classification",))
    check_two_at_once(recipe, processes=processes)
    check_choice(call, "model.stem", recipe.model.stem, STEMS)
    check_flag(call, "model.pretrained", recipe.model.pretrained)
    check_count(call, "data.size", recipe.data.size, least=1)
    if "size" in recipe.data.options:
        raise OptionError(f"{call}: data.options.size has its own field; --set data.size=... instead")
    check_count(call, "data.padding", recipe.data.padding, least=0, most=recipe.data.size)
