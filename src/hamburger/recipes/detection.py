"""Detection and instance segmentation: Mask R-CNN with a context on its pyramid."""

from __future__ import annotations

from hamburger.recipes.base import Optim
from hamburger.recipes.detect_base import DetectionRecipe, MaskRCNN, Scenes, detection_recipes


@detection_recipes.register("shapes-detect")
def shapes_detect() -> DetectionRecipe:
    """The embedded default: generated scenes of 96 x 96 and a tiny encoder, some minutes on two cores."""
    return DetectionRecipe(
        name="shapes-detect",
        model=MaskRCNN(
            backbone="tiny",
            size=96,
            max_size=96,
            anchor=12,
            channels=32,
            hidden=128,
            sampled=64,
            proposals=100,
        ),
        data=Scenes(options={"size": 96, "length": 200}, crop=96, workers=0),
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
        model=MaskRCNN(size=256, max_size=256, anchor=16, sampled=128, proposals=500),
        data=Scenes(options={"size": 256}, crop=256, scales=(0.8, 1.25)),
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
        model=MaskRCNN(norm="frozen", frozen=2, pretrained="resnet50.safetensors"),
        data=Scenes(
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
