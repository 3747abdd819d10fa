"""Segmentation recipes: those of the paper, and short ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hamburger.checkpoints.weights_file import MAX_SIDE, MIN_SIDE
from hamburger.errors import OptionError, check_count, check_positive
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
class SegmentationModel:
    """Keywords of `create_model`."""

    name: str = "hamnet"
    backbone: str = "resnet50"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    output_stride: int = 16
    context: str | None = "nmf"
    context_options: dict[str, Any] = field(default_factory=dict)
    head_options: dict[str, Any] = field(default_factory=dict)
    pretrained: str | None = None  # a file for the backbone, or "timm"


@dataclass(frozen=True)
class SegmentationData(DataOptions):
    name: str = "patchwork"
    crop: int = 513
    scales: tuple[float, float] = (0.5, 2.0)
    # strength of random changes of brightness, contrast and saturation
    photometric: float = field(default=0.0, metadata={ADDED_LATER: True})
    # the longer side of the images, to which predictions resize photos; None: photos keep their size
    side: int | None = field(default=None, metadata={ADDED_LATER: True})


@dataclass(frozen=True)
class SegmentationRecipe(SupervisedTraining):
    """A segmentation network."""

    model: SegmentationModel = field(default_factory=SegmentationModel)
    data: SegmentationData = field(default_factory=SegmentationData)
    optim: Optim = field(default_factory=Optim)
    bn_momentum: float = 3e-4
    eval_every: int = 2_000
    start: str | None = None  # initial weights: a run folder, a file, or a name of `ham list weights`
    keep: str = "best"  # which weights become best.safetensors: the best on the validation split, or the last


# functions without arguments that return a SegmentationRecipe
segmentation_recipes: Registry[SegmentationRecipe] = Registry("recipe")


ANIMALS = ["background", "cat", "cow", "dog", "horse", "person", "sheep"]
PLAIN = {"stem": "plain", "stride_in": "1x1"}  # the ResNet v1 of the widely copied ImageNet weights
SHORT_BN = 0.1  # with 3e-4, 2,000 steps leave more than half of the running statistics at their initial value


@segmentation_recipes.register("voc-ablation")
def voc_ablation() -> SegmentationRecipe:
    """The paper's ablations, tables 1, 2, 8 and 9: ResNet-50 at stride 16, 30,000 steps of 12 images.

    Section 3.1 and appendix E.1; figures 3, 4 and 7 to 9 use this setting too. Device: GPU.
    """
    return SegmentationRecipe(
        name="voc-ablation",
        model=SegmentationModel(backbone="resnet50", output_stride=16, pretrained="timm"),
        data=SegmentationData(name="voc", train_split="trainaug", crop=513),
        optim=Optim(lr=9e-3),
        batch=12,
        steps=30_000,
        precision="bf16",
        channels_last=True,
        eval_every=5_000,
    )


@segmentation_recipes.register("voc")
def voc() -> SegmentationRecipe:
    """Table 4, first stage: ResNet-101 at stride 8, 60,000 steps of 16 images of the augmented set. Device: GPU."""
    return replace(
        voc_ablation(),
        name="voc",
        model=SegmentationModel(backbone="resnet101", output_stride=8, pretrained="timm"),
        batch=16,
        steps=60_000,
    )


@segmentation_recipes.register("voc-trainval")
def voc_trainval() -> SegmentationRecipe:
    """Table 4, second stage: fine-tunes `voc` on trainval, 20,000 steps at a tenth of the learning rate.

    The paper states the rate, but not the number of steps. Device: GPU.
    """
    base = voc()
    return replace(
        base,
        name="voc-trainval",
        model=replace(base.model, pretrained=None),  # all weights come from `start`
        data=replace(base.data, train_split="trainval"),
        optim=replace(base.optim, lr=base.optim.lr / 10),
        steps=20_000,
        start="runs/voc",
        keep="last",  # the validation split is part of the training data, so it cannot select weights
    )


@segmentation_recipes.register("context")
def context() -> SegmentationRecipe:
    """Table 5: PASCAL-Context, ResNet-101 at stride 8, 25,000 steps. Device: GPU."""
    base = voc()
    return replace(
        base,
        name="context",
        data=SegmentationData(name="context", crop=513),
        optim=replace(base.optim, lr=2e-3),
        steps=25_000,
    )


@segmentation_recipes.register("camvid")
def camvid() -> SegmentationRecipe:
    """Street scenes of 480 x 360 with the settings of the ablations; not in the paper. Device: GPU."""
    return replace(
        voc_ablation(),
        name="camvid",
        data=SegmentationData(name="camvid", crop=353),
        batch=16,
        steps=10_000,
        bn_momentum=SHORT_BN,
        eval_every=2_000,
    )


@segmentation_recipes.register("voc-animals")
def voc_animals() -> SegmentationRecipe:
    """Seven classes of VOC, minutes on one GPU; pass ResNet-50 weights with `--set model.pretrained=FILE`.

    Device: GPU. Duration: minutes.
    """
    return replace(
        voc_ablation(),
        name="voc-animals",
        model=SegmentationModel(backbone="resnet50", backbone_options=dict(PLAIN), output_stride=16),
        data=SegmentationData(name="voc", options={"classes": list(ANIMALS)}, crop=321),
        batch=16,
        steps=2_000,
        bn_momentum=SHORT_BN,
        eval_every=1_000,
        checkpoint_every=1_000,
    )


@segmentation_recipes.register("voc-352")
def voc_352() -> SegmentationRecipe:
    """The ablation recipe on all of VOC at a longest side of 352 pixels: 22,500 steps of 16 images, 360,000 samples.

    `--data` is a folder with images/, labels/, train_aug.txt, val.txt and classes.txt. Pass ResNet-50 weights with
    `--set model.pretrained=FILE`. Validates ten times. Device: GPU.
    """
    return replace(
        voc_ablation(),
        name="voc-352",
        model=SegmentationModel(backbone="resnet50", backbone_options=dict(PLAIN), output_stride=16),
        data=SegmentationData(name="folder", train_split="train_aug", crop=353),
        batch=16,
        steps=22_500,
        eval_every=2_250,
        checkpoint_every=2_250,
        keep="last",  # choosing the best of ten evaluations on the validation split would bias every result
    )


@segmentation_recipes.register("hamnet-lite0-voc")
def hamnet_lite0_voc() -> SegmentationRecipe:
    """A small network for photos: EfficientNet-Lite0 and an online NMF ham on the data of `voc-352`.

    1.6 million samples with colour changes. Pass weights of timm's tf_efficientnet_lite0 with `--set
    model.pretrained=FILE`; `python -m hamburger_lab.shipped_weights` converts other names. Device: GPU.
    """
    base = voc_352()
    return replace(
        base,
        name="hamnet-lite0-voc",
        model=SegmentationModel(backbone="timm:tf_efficientnet_lite0", context_options={"init": "online"}),
        data=replace(base.data, photometric=0.3, side=352),
        optim=Optim(lr=0.03, warmup=1_000),
        batch=64,
        steps=25_000,
        bn_momentum=0.01,
        eval_every=5_000,
        checkpoint_every=1_000,
    )


@segmentation_recipes.register("hamnet-r50-voc")
def hamnet_r50_voc() -> SegmentationRecipe:
    """As `hamnet-lite0-voc` with a ResNet-50 v1 and half the batch. Device: GPU."""
    base = hamnet_lite0_voc()
    model = replace(base.model, backbone="resnet50", backbone_options=dict(PLAIN))
    return replace(base, name="hamnet-r50-voc", model=model, optim=replace(base.optim, lr=0.015), batch=32)


@segmentation_recipes.register("camvid-short")
def camvid_short() -> SegmentationRecipe:
    """CamVid in minutes on one GPU; pass ResNet-50 weights with `--set model.pretrained=FILE`.

    Device: GPU. Duration: minutes.
    """
    return replace(voc_animals(), name="camvid-short", data=SegmentationData(name="camvid", crop=321))


@segmentation_recipes.register("patchwork")
def patchwork() -> SegmentationRecipe:
    """The default: generated scenes of 64 x 64, half a minute on two CPU cores. Device: CPU. Duration: 0.5 to 2 min."""
    return SegmentationRecipe(
        name="patchwork",
        model=SegmentationModel(backbone="tiny", output_stride=4, head_options={"width": 64}),
        data=SegmentationData(name="patchwork", crop=64, scales=(1.0, 1.0), flip=False, workers=0),
        optim=Optim(lr=0.2, warmup=20),  # the best of 0.02 ... 0.6 on average over the baseline and the contexts
        batch=16,
        steps=400,
        bn_momentum=SHORT_BN,
        eval_every=100,
        checkpoint_every=100,
    )


@segmentation_recipes.register("patchwork-glyphs")
def patchwork_glyphs() -> SegmentationRecipe:
    """Generated scenes in which pieces must be matched to rare glyphs, which favours attention.

    Device: CPU. Duration: 1 to 2 min.
    """
    base = patchwork()
    return replace(
        base,
        name="patchwork-glyphs",
        data=replace(base.data, name="patchwork-glyphs"),
        optim=replace(base.optim, lr=0.05),  # rare glyphs need a lower rate than colours
        steps=1_000,  # and more steps
        eval_every=250,
        checkpoint_every=250,
    )


@segmentation_recipes.register("folder")
def folder() -> SegmentationRecipe:
    """Your own images and label PNGs. Device: GPU."""
    return replace(voc_animals(), name="folder", data=SegmentationData(name="folder", crop=321), steps=4_000)


@segmentation_recipes.register("folder-cpu")
def folder_cpu() -> SegmentationRecipe:
    """Your own images and label PNGs on two CPU cores: fine-tunes the small network that ships with the package.

    Images are shrunk to a longer side of 352 pixels, as that network has seen them. Device: CPU. Duration: 2 to 5 min.
    """
    base = hamnet_lite0_voc()
    return replace(
        base,
        name="folder-cpu",
        data=replace(
            base.data, train_split="train", options={"side": base.data.side}, crop=193, scales=(0.5, 1.5), workers=1
        ),
        optim=Optim(lr=0.01, warmup=20),
        batch=8,
        steps=250,
        precision="32",  # bf16 is slower on CPUs without instructions for it
        bn_momentum=0.03,
        eval_every=125,
        checkpoint_every=50,
        log_every=10,
        start="hamnet-lite0-voc",
        keep="best",
    )


def check_segmentation_recipe(recipe: SegmentationRecipe, *, processes: int = 1) -> None:
    """Raise OptionError for the first invalid field; `processes` share the batch."""
    call = check_supervised(recipe, processes=processes)
    check_positive(call, "bn_momentum", recipe.bn_momentum, most=1)
    check_count(call, "model.output_stride", recipe.model.output_stride, least=1)
    if recipe.start is not None and recipe.model.pretrained is not None:
        raise OptionError(
            f"{call}: start ({recipe.start}) replaces all weights, including model.pretrained "
            f"({recipe.model.pretrained}); --set one of them to none"
        )
    check_views(call, recipe.data)
    check_positive(call, "data.photometric", recipe.data.photometric, zero=True, most=0.9)
    if recipe.data.side is not None:
        check_count(call, "data.side", recipe.data.side, least=MIN_SIDE, most=MAX_SIDE)
