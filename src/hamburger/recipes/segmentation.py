"""The paper's segmentation recipes, and short ones for sets that fit a small machine."""

from __future__ import annotations

from dataclasses import replace

from hamburger.recipes.base import Data, Model, Optim, Recipe, recipes

ANIMALS = ["background", "cat", "cow", "dog", "horse", "person", "sheep"]
PLAIN = {"stem": "plain", "stride_in": "1x1"}  # the ResNet v1 of the widely copied ImageNet weights
SHORT_BN = 0.1  # 2,000 steps of 3e-4 leave more than half of the running statistics at their first value


@recipes.register("voc-ablation")
def voc_ablation() -> Recipe:
    """Tables 1, 2 and 8 to 12: ResNet-50 at stride 16, 30,000 steps of 12 images."""
    return Recipe(
        name="voc-ablation",
        model=Model(backbone="resnet50", output_stride=16, pretrained="timm"),
        data=Data(name="voc", train_split="trainaug", crop=513),
        optim=Optim(lr=9e-3),
        batch=12,
        steps=30_000,
        precision="bf16",
        channels_last=True,
        eval_every=5_000,
    )


@recipes.register("voc")
def voc() -> Recipe:
    """Table 4, first half: ResNet-101 at stride 8, 60,000 steps of 16 images of the augmented set."""
    return replace(
        voc_ablation(),
        name="voc",
        model=Model(backbone="resnet101", output_stride=8, pretrained="timm"),
        batch=16,
        steps=60_000,
    )


@recipes.register("voc-trainval")
def voc_trainval() -> Recipe:
    """Table 4, second half: 20,000 steps more on trainval at a tenth of the rate, from the run of `voc`."""
    base = voc()
    return replace(
        base,
        name="voc-trainval",
        model=replace(base.model, pretrained=None),  # all weights come from `start`
        data=replace(base.data, train_split="trainval"),
        optim=replace(base.optim, lr=base.optim.lr / 10),
        steps=20_000,
        start="runs/voc",
        keep="last",  # the validation split is part of what it trains on, so it cannot choose
    )


@recipes.register("context")
def context() -> Recipe:
    """Table 5: PASCAL-Context, ResNet-101 at stride 8, 25,000 steps."""
    base = voc()
    return replace(
        base,
        name="context",
        data=Data(name="context", crop=513),
        optim=replace(base.optim, lr=2e-3),
        steps=25_000,
    )


@recipes.register("camvid")
def camvid() -> Recipe:
    """Street scenes of 480 x 360 at the ablation's settings; the paper has no such row."""
    return replace(
        voc_ablation(),
        name="camvid",
        data=Data(name="camvid", crop=353),
        batch=16,
        steps=10_000,
        bn_momentum=SHORT_BN,
        eval_every=2_000,
    )


@recipes.register("voc-animals")
def voc_animals() -> Recipe:
    """Seven classes of VOC, minutes on one GPU; give the ResNet-50 with `--set model.pretrained=FILE`."""
    return replace(
        voc_ablation(),
        name="voc-animals",
        model=Model(backbone="resnet50", backbone_options=dict(PLAIN), output_stride=16),
        data=Data(name="voc", options={"classes": list(ANIMALS)}, crop=321),
        batch=16,
        steps=2_000,
        bn_momentum=SHORT_BN,
        eval_every=1_000,
        checkpoint_every=1_000,
    )


@recipes.register("voc-352")
def voc_352() -> Recipe:
    """The ablation recipe on all of VOC at a longest side of 352 pixels: 22,500 steps of 16 images, 360,000 samples.

    `--data` names a folder with images/, labels/, train_aug.txt, val.txt and classes.txt; give the ResNet-50 with
    `--set model.pretrained=FILE`. Validates at ten points.
    """
    return replace(
        voc_ablation(),
        name="voc-352",
        model=Model(backbone="resnet50", backbone_options=dict(PLAIN), output_stride=16),
        data=Data(name="folder", train_split="train_aug", crop=353),
        batch=16,
        steps=22_500,
        eval_every=2_250,
        checkpoint_every=2_250,
        keep="last",  # the best of ten points on the validation split would flatter every row
    )


@recipes.register("camvid-short")
def camvid_short() -> Recipe:
    """CamVid in minutes on one GPU; give the ResNet-50 with `--set model.pretrained=FILE`."""
    return replace(voc_animals(), name="camvid-short", data=Data(name="camvid", crop=321))


@recipes.register("patchwork")
def patchwork() -> Recipe:
    """The embedded default: generated scenes of 64 x 64, half a minute on two cores."""
    return Recipe(
        name="patchwork",
        model=Model(
            backbone="tiny",
            output_stride=4,
            context_options={},
            head_options={"width": 64},
        ),
        data=Data(name="patchwork", crop=64, scales=(1.0, 1.0), flip=False, workers=0),
        optim=Optim(lr=0.2, warmup=20),  # the best of 0.02 ... 0.6 for the baseline and the contexts taken together
        batch=16,
        steps=400,
        bn_momentum=SHORT_BN,
        eval_every=100,
        checkpoint_every=100,
    )


@recipes.register("patchwork-glyphs")
def patchwork_glyphs() -> Recipe:
    """The variant in which pieces must be matched to rare glyphs: attention's own game."""
    base = patchwork()
    return replace(
        base,
        name="patchwork-glyphs",
        data=replace(base.data, name="patchwork-glyphs"),
        optim=replace(base.optim, lr=0.05),  # rare glyphs want a gentler rate than colours do
        steps=1_000,  # and more time
        eval_every=250,
        checkpoint_every=250,
    )


@recipes.register("folder")
def folder() -> Recipe:
    """A person's own images and label PNGs."""
    return replace(
        voc_animals(),
        name="folder",
        data=Data(name="folder", crop=321),
        steps=4_000,
    )
