"""Detection recipes: Mask R-CNN with a context in its encoder or on its pyramid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hamburger.errors import OptionError, check_choice, check_count, check_flag
from hamburger.registry import Registry
from hamburger.training.recipe import KEEP, Optim, SupervisedTraining, check_optim, check_training, check_views
from hamburger.training.scores import Score
from hamburger.training.task import Kind


@dataclass(frozen=True)
class DetectorModel:
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
class DetectionData:
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
    model: DetectorModel = field(default_factory=DetectorModel)
    data: DetectionData = field(default_factory=DetectionData)
    optim: Optim = field(default_factory=Optim)
    eval_every: int = 2_000
    keep: str = "best"  # which weights become best.safetensors: the best on the validation split, or the last


# functions without arguments that return a DetectionRecipe
detection_recipes: Registry[DetectionRecipe] = Registry("detection recipe")


# ----------------------------------------------------------------------------------------------------------------------
# Detection and instance segmentation: Mask R-CNN with a context on its pyramid.


@detection_recipes.register("shapes-detect")
def shapes_detect() -> DetectionRecipe:
    """The embedded default: generated scenes of 96 x 96 and a tiny encoder, some minutes on two cores."""
    return DetectionRecipe(
        name="shapes-detect",
        model=DetectorModel(
            backbone="tiny",
            size=96,
            max_size=96,
            anchor=12,
            channels=32,
            hidden=128,
            sampled=64,
            proposals=100,
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
    """Generated scenes of 256 x 256, ResNet-50 from scratch; on p3 the context sees 32 x 32 positions."""
    return DetectionRecipe(
        name="shapes-maskrcnn",
        model=DetectorModel(size=256, max_size=256, anchor=16, sampled=128, proposals=500),
        data=DetectionData(options={"size": 256}, crop=256, scales=(0.8, 1.25)),
        # from scratch the first gradients are hundreds long and grow: some seeds diverge in the warm-up without a bound
        optim=Optim(lr=0.02, bias_lr=1.0, warmup=100, clip=10.0),
        batch=16,
        steps=1_500,
        precision="bf16",
        eval_every=750,
        checkpoint_every=750,
    )


@detection_recipes.register("coco-maskrcnn")
def coco_maskrcnn() -> DetectionRecipe:
    """COCO 2017, the usual 1x: 90,000 steps of 16 whole images, 800 by 1,333 pixels at most, a pretrained encoder with
    frozen norms. The rate falls by poly, as everywhere here. Its file is given with --set model.pretrained=FILE.
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


# ----------------------------------------------------------------------------------------------------------------------
# Whether a detection recipe can be run at all, asked before any work is done.


COUNTS = ("size", "max_size", "anchor", "channels", "hidden", "sampled", "proposals")


def check_detection_recipe(recipe: DetectionRecipe, *, processes: int = 1) -> None:
    """Raise OptionError on the first field whose value cannot be; `processes` share the batch."""
    call = f"recipe '{recipe.name}'"
    check_training(recipe, processes=processes)
    check_choice(call, "task", recipe.task, ("detection",))
    check_count(call, "eval_every", recipe.eval_every, least=1)
    check_choice(call, "keep", recipe.keep, KEEP)
    if recipe.compile:
        raise OptionError(f"{call}: the number of boxes changes from step to step, compile=true would not end")
    for name in COUNTS:
        check_count(call, f"model.{name}", getattr(recipe.model, name), least=1)
    if recipe.model.pretrained is None and recipe.model.norm == "frozen":
        raise OptionError(
            f"{call}: frozen norms are those of pretrained weights; --set model.pretrained=FILE, or model.norm=batch"
        )
    check_views(call, recipe.data)
    check_flag(call, "data.pad", recipe.data.pad)
    check_optim(call, recipe.optim)


# ----------------------------------------------------------------------------------------------------------------------
# The kinds of recipe that `ham train` takes, one for each task, and the scores that their runs are judged by.


DETECTION = Kind(
    task="detection",
    networks="Mask R-CNN",
    recipe=DetectionRecipe,
    named=detection_recipes,
    check=check_detection_recipe,
    scores=(Score("mask_map", "mask mAP"), Score("box_map", "box mAP")),
    pooled="COCO's average over ten overlaps from 0.5 to 0.95 and over classes, at most 100 objects an image",
    each=Score("per_class", "mask mAP"),
)
