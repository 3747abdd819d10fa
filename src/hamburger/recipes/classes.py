"""Classification with a ResNet of timm and a context put into it: the post on decomposed attention names this task."""

from __future__ import annotations

from dataclasses import replace

from hamburger.recipes.base import Optim
from hamburger.recipes.class_base import Classifier, ClassRecipe, Pictures, class_recipes


@class_recipes.register("figures-classes")
def figures_classes() -> ClassRecipe:
    """The embedded default: four generated forms of 32 x 32, seconds on two cores; the context sees 8 x 8 positions."""
    return ClassRecipe(
        name="figures-classes",
        model=Classifier(
            backbone="resnet10t",
            backbone_options={"stem_width": 8, "channels": [32, 32, 64, 64]},
            after="layer1",  # 32 channels; layer3 would leave 2 x 2 positions, fewer than a ham has atoms
        ),
        data=Pictures(name="figures", options={"length": 512}, flip=False, workers=0),
        optim=Optim(lr=0.05, weight_decay=1e-4, bias_lr=1.0, warmup=5),
        batch=32,
        steps=120,
        eval_every=40,
        checkpoint_every=40,
    )


@class_recipes.register("cifar10-classes")
def cifar10_classes() -> ClassRecipe:
    """CIFAR-10, ResNet-18 with a small stem, 30 epochs; the context sees 8 x 8 positions."""
    return ClassRecipe(
        name="cifar10-classes",
        model=Classifier(backbone="resnet18", stem="small"),  # the usual one would leave 2 x 2 positions to the context
        data=Pictures(name="cifar10", val_split="test"),
        optim=Optim(lr=0.1, weight_decay=5e-4, bias_lr=1.0, warmup=200),
        batch=128,
        steps=11_700,
        precision="bf16",
        channels_last=True,
        eval_every=1_170,
        checkpoint_every=1_170,
    )


@class_recipes.register("tiny-imagenet-classes")
def tiny_imagenet_classes() -> ClassRecipe:
    """Tiny-ImageNet, or some classes of it, at 64 pixels; the context sees 16 x 16 positions."""
    return replace(
        cifar10_classes(),
        name="tiny-imagenet-classes",
        data=Pictures(name="tiny-imagenet", size=64),
        steps=4_000,
        eval_every=400,
        checkpoint_every=400,
    )
