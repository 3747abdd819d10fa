"""Average precision of a detector on a split, for boxes and for masks, computed by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.ops import box_convert

from hamburger import distributed
from hamburger.detection.data import DetectionSet, Scene
from hamburger.detection.data.coco import encode_masks
from hamburger.training.supervised import evaluation_mode, read_share

PROTOCOL = "COCO, at most 100 objects an image"
# the twelve numbers of COCO's summary, in its order
SUMMARY = (
    *("map", "map_50", "map_75", "map_small", "map_medium", "map_large"),
    *("mar_1", "mar_10", "mar_100", "mar_small", "mar_medium", "mar_large"),
)

Entry = dict[str, Any]  # an annotation or a detection, in the terms of COCO files


@dataclass(frozen=True)
class DetectionScores:
    """Scores between 0 and 1, None where no object decides. `per_class` is the mask mAP of each class.

    `box` and `mask` hold all twelve numbers of COCO's summary: `map`, `map_50`, `map_75`, by size, and recalls.
    To add a score, compute it in `score_images`: every field here is written to result.json and metrics.jsonl, and
    those named in `DetectionTask.metrics` (task.py) are printed by `ham train`, `eval`, `compare` and `report`.
    """

    mask_map: float | None
    box_map: float | None
    per_class: dict[str, float | None]
    mask: dict[str, float | None]
    box: dict[str, float | None]
    protocol: str
    images: int


class ScoredImage(NamedTuple):
    """One image's objects and detections, small enough to keep: masks are RLEs."""

    id: int  # index in the set
    size: tuple[int, int]
    truth: list[Entry]
    detections: list[Entry]


def evaluate_detector(
    net: nn.Module,
    dataset: DetectionSet,
    *,
    device: torch.device,
    workers: int = 0,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> DetectionScores:
    """Scores of `net` on every image, one at a time, shared among the processes. The mode of `net` is restored."""
    images: list[ScoredImage] = []
    with evaluation_mode(net, fixed_size=False):
        for index, scene in read_share(dataset, workers, progress):
            [detections] = net([scene.image.to(device).float() / 255])
            images.append(describe_image(index, scene, detections))
    return score_images(gather_images(images), dataset.classes)


def score_images(images: Sequence[ScoredImage], classes: Sequence[str]) -> DetectionScores:
    """Box and mask scores of all images together."""
    box, _ = average_precision(images, len(classes), "bbox")
    mask, per_class = average_precision(images, len(classes), "segm")
    return DetectionScores(
        mask_map=mask["map"],
        box_map=box["map"],
        per_class=dict(zip(classes, per_class, strict=True)),
        mask=mask,
        box=box,
        protocol=PROTOCOL,
        images=len(images),
    )


def describe_image(index: int, scene: Scene, detections: dict[str, Tensor]) -> ScoredImage:
    """The objects of one image and a detector's output for it, in the terms of COCO files."""
    truth = _entries(scene.boxes, scene.masks, category_id=scene.labels, area=scene.areas, iscrowd=scene.crowd.int())
    predicted = _entries(
        detections["boxes"], detections["masks"], category_id=detections["labels"], score=detections["scores"]
    )
    return ScoredImage(index, (scene.image.shape[1], scene.image.shape[2]), truth, predicted)


def _entries(boxes: Tensor, masks: Tensor, **columns: Tensor) -> list[Entry]:
    columns["bbox"] = box_convert(boxes.cpu().double(), "xyxy", "xywh")
    rows = zip(*(column.tolist() for column in columns.values()), encode_masks(masks), strict=True)
    return [dict(zip((*columns, "segmentation"), row, strict=True)) for row in rows]


def gather_images(images: list[ScoredImage]) -> list[ScoredImage]:
    """The images of all processes in the order of the set; all processes must call this together."""
    everywhere = [image for part in distributed.gather_objects(images) for image in part]
    return sorted(everywhere, key=lambda image: image.id)


def average_precision(
    images: Sequence[ScoredImage], classes: int, kind: str
) -> tuple[dict[str, float | None], list[float | None]]:
    """COCO's summary by name and the `map` of each class, by "bbox" or "segm"; None where there are no objects."""
    from pycocotools import mask as coco_masks
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def as_coco(entries_by_image: Sequence[list[Entry]]) -> Any:
        annotations: list[Entry] = []
        for image, entries in zip(images, entries_by_image, strict=True):
            for entry in entries:
                width, height = entry["bbox"][2:]
                area = width * height if kind == "bbox" else float(coco_masks.area(entry["segmentation"]))
                # ids count from 1, since COCOeval takes a match with id 0 for none
                identity = {"id": len(annotations) + 1, "image_id": image.id}
                annotations.append({"area": area, "iscrowd": 0, **entry, **identity})
        index = COCO()
        sizes = [{"id": image.id, "height": image.size[0], "width": image.size[1]} for image in images]
        categories = [{"id": label} for label in range(classes)]
        index.dataset = {"images": sizes, "categories": categories, "annotations": annotations}
        index.createIndex()
        return index

    with contextlib.redirect_stdout(io.StringIO()):
        truth, detections = as_coco([image.truth for image in images]), as_coco([image.detections for image in images])
        evaluation = COCOeval(truth, detections, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    summary = {name: _or_none(value) for name, value in zip(SUMMARY, evaluation.stats, strict=True)}
    precision = evaluation.eval["precision"][..., 0, -1]  # thresholds recalls classes, for all sizes, 100 detections
    return summary, [_or_none(precision[..., label].mean()) for label in range(classes)]


def _or_none(value: float) -> float | None:
    """COCO writes -1 where no object decides."""
    return None if value < 0 else float(value)
