"""Detection recipes: Mask R-CNN with a context in its encoder or on its pyramid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hamburger.errors import OptionError, check_choice, check_count, check_flag
from hamburger.registry import Registry
from hamburger.training.recipe import (
    ADDED_LATER,
    DataOptions,
    Optim,
    SupervisedTraining,
    check_supervised,
    check_views,
)


@dataclass(frozen=True)
class DetectorModel:
    """Keywords of `create_detector`."""

    backbone: str = "resnet50"
    context: str | None = "nmf"
    context_options: dict[str, Any] = field(default_factory=dict)
    after: str = "p3"  # layer1 ... layer4, p2 ... p5, or full names of submodules; comma-separated
    gate: str | None = "zero"
    size: int = 800  # of the shorter side in pixels, after resizing
    max_size: int = 1333
    anchor: int = 32  # side of the smallest anchor
    channels: int = 256  # of pyramid and mask head
    hidden: int = 1024  # of the box head
    sampled: int = 512  # boxes of an image that the heads are trained on
    proposals: int = 1000  # boxes of an image that the heads classify
    norm: str = "batch"  # or "frozen": those of the pretrained weights
    frozen: int = 0  # first parts of the encoder that are not trained
    stride_in: str = field(default="3x3", metadata={ADDED_LATER: True})  # "1x1" for ResNet v1 weights
    pretrained: str | None = None  # weights file of the encoder


@dataclass(frozen=True)
class DetectionData(DataOptions):
    """A detection set. Training uses at most `crop` x `crop` pixels of images scaled by a factor from `scales`."""

    name: str = "shapes"
    crop: int = 128
    scales: tuple[float, float] = (1.0, 1.0)
    pad: bool = True  # pad to the square; otherwise the network resizes smaller views to its own size


@dataclass(frozen=True)
class DetectionRecipe(SupervisedTraining):
    """Training of a detector with masks."""

    task: str = "detection"  # identifies a recipe.json
    model: DetectorModel = field(default_factory=DetectorModel)
    data: DetectionData = field(default_factory=DetectionData)
    optim: Optim = field(default_factory=Optim)
    eval_every: int = 2_000
    keep: str = "best"  # which weights become best.safetensors: the best on the validation split, or the last


# functions without arguments that return a DetectionRecipe
detection_recipes: Registry[DetectionRecipe] = Registry("detection recipe")


# -- recipes -----------------------------------------------------------------------------------------------------------


@detection_recipes.register("shapes-detect")
def shapes_detect() -> DetectionRecipe:
    """The default: generated scenes of 96 x 96 and a tiny encoder, some minutes on two cores.

    Device: CPU. Duration: 2 min.
    """
    return DetectionRecipe(
        name="shapes-detect",
        model=DetectorModel(
            backbone="tiny", size=96, max_size=96, anchor=12, channels=32, hidden=128, sampled=64, proposals=100
        ),
        data=DetectionData(options={"size": 96, "length": 200}, crop=96, workers=0),
        optim=Optim(lr=0.04, bias_lr=1.0, warmup=30),
        batch=4,
        steps=600,
        eval_every=200,
        checkpoint_every=100,
    )


@detection_recipes.register("shapes-maskrcnn")
def shapes_maskrcnn() -> DetectionRecipe:
    """Generated scenes of 256 x 256, ResNet-50 from scratch; on p3 the context sees 32 x 32 positions.

    Device: GPU. Duration: minutes.
    """
    return DetectionRecipe(
        name="shapes-maskrcnn",
        model=DetectorModel(size=256, max_size=256, anchor=16, sampled=128, proposals=500),
        data=DetectionData(options={"size": 256}, crop=256, scales=(0.8, 1.25)),
        # from scratch the first gradients have norms of hundreds: without clipping some seeds diverge in the warm-up
        optim=Optim(lr=0.02, bias_lr=1.0, warmup=100, clip=10.0),
        batch=16,
        steps=1_500,
        precision="bf16",
        eval_every=750,
        checkpoint_every=750,
    )


@detection_recipes.register("coco-maskrcnn")
def coco_maskrcnn() -> DetectionRecipe:
    """COCO 2017 with the usual 1x schedule: 90,000 steps of 16 images of at most 800 x 1,333 pixels.

    The encoder is pretrained (--set model.pretrained=FILE) and its norms are frozen. The learning rate decays
    polynomially, as in all recipes here.

    Device: GPU.
    """
    return DetectionRecipe(
        name="coco-maskrcnn",
        model=DetectorModel(norm="frozen", frozen=2, pretrained="resnet50.safetensors"),
        data=DetectionData(
            name="coco",
            options={"broken": "drop", "empty": "keep"},
            train_split="train2017",
            val_split="val2017",
            crop=640,  # no image is larger
            pad=False,
            workers=12,
        ),
        optim=Optim(lr=0.02, bias_lr=1.0, warmup=1_000),
        batch=16,
        steps=90_000,
        precision="bf16",
        eval_every=15_000,
        checkpoint_every=1_000,
    )


# -- checks ------------------------------------------------------------------------------------------------------------


def check_detection_recipe(recipe: DetectionRecipe, *, processes: int = 1) -> None:
    """Raise OptionError on the first invalid field. `processes` share the batch."""
    call = check_supervised(recipe, processes=processes)
    check_choice(call, "task", recipe.task, ("detection",))
    if recipe.compile:
        raise OptionError(
            f"{call}: compile=true would recompile without end, since the number of boxes changes; leave it false"
        )
    for name in ("size", "max_size", "anchor", "channels", "hidden", "sampled", "proposals"):
        check_count(call, f"model.{name}", getattr(recipe.model, name), least=1)
    if recipe.model.pretrained is None and recipe.model.norm == "frozen":
        raise OptionError(
            f"{call}: model.norm=frozen needs pretrained weights; --set model.pretrained=FILE, or model.norm=batch"
        )
    check_views(call, recipe.data)
    check_flag(call, "data.pad", recipe.data.pad)
