"""Average precision of a detector on a split, of boxes and of masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hamburger import distributed
from hamburger.detection.average_precision import (
    MOST,
    AveragePrecision,
    Found,
    Truth,
    box_areas,
    box_overlaps,
    mask_overlaps,
)
from hamburger.detection.data.base import DetectionSet, Scene
from hamburger.training.loader import ahead

PROTOCOL = f"COCO, at most {MOST[-1]} objects an image"


@dataclass(frozen=True)
class DetectionScores:
    """Between 0 and 1, None where no object decides; `per_class` is the mask mAP of each class.

    `box` and `mask` hold all twelve numbers of COCO's summary: `map`, `map_50`, `map_75`, by size, and recalls.
    """

    mask_map: float | None
    box_map: float | None
    per_class: dict[str, float | None]
    mask: dict[str, float | None]
    box: dict[str, float | None]
    protocol: str
    images: int


@torch.no_grad()  # not inference mode: modules may keep what they make here, and train with it later
def evaluate_detector(
    net: nn.Module,
    dataset: DetectionSet,
    *,
    device: torch.device,
    workers: int = 0,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> DetectionScores:
    """Every image once and alone, shared among the processes. `net` is left in the mode it came in."""
    boxes, masks = (AveragePrecision(len(dataset.classes)) for _ in range(2))
    training = net.training
    net.eval()
    own = range(distributed.rank(), len(dataset), distributed.world())
    try:
        with closing(ahead(dataset.__getitem__, own, workers=workers, depth=2 * max(1, workers))) as scenes:
            for done, (index, scene) in enumerate(zip(own, scenes, strict=True)):
                progress(done, len(own))
                image = scene.image.to(device).float() / 255
                compare(index, net([image])[0], scene, device, boxes, masks)
    finally:
        net.train(training)
    progress(len(own), len(own))
    for each in (boxes, masks):
        each.gather()
    return summary(boxes.scores(), masks.scores(), dataset)


def compare(
    index: int,
    found: dict[str, Tensor],
    scene: Scene,
    device: torch.device,
    boxes: AveragePrecision,
    masks: AveragePrecision,
) -> None:
    """One image's objects and what was found of them."""
    crowd = scene.crowd.to(device)
    labels, scores = found["labels"].cpu().numpy(), found["scores"].cpu().numpy()
    truth = Truth(scene.labels.numpy(), scene.areas.numpy(), scene.crowd.numpy())
    overlaps = box_overlaps(found["boxes"], scene.boxes.to(device), crowd)
    boxes.update(index, Found(labels, scores, box_areas(found["boxes"]).cpu().numpy()), truth, overlaps)
    overlaps = mask_overlaps(found["masks"], scene.masks.to(device), crowd)
    areas = found["masks"].flatten(1).sum(1).double().cpu().numpy()
    masks.update(index, Found(labels, scores, areas), truth, overlaps)


def summary(boxes: dict[str, Any], masks: dict[str, Any], dataset: DetectionSet) -> DetectionScores:
    boxes, masks = ({name: known(value) for name, value in each.items()} for each in (boxes, masks))
    per_class = dict(zip(dataset.classes, masks.pop("per_class"), strict=True))
    del boxes["per_class"]
    return DetectionScores(masks["map"], boxes["map"], per_class, masks, boxes, PROTOCOL, len(dataset))


def known(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, list):
        return [known(each) for each in value]
    return None if math.isnan(value) else value
