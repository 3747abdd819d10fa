"""Mask R-CNN as one graph for one image size, which other programs can run."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.models.detection.transform import resize_boxes
from torchvision.ops import box_iou, clip_boxes_to_image, nms

from hamburger.detection.model import LEAST
from hamburger.training.task import Graph, Judged, Outputs

SMALL = 1e-2  # side of a box that torchvision takes for none
OUTSIDE = ((-2.0, -2.0, -1.0, -1.0), (-4.0, -4.0, -3.0, -3.0))  # boxes that no box in an image meets


class FixedDetector(nn.Module):
    """One image, 1 3 h w, normalised   ->   boxes m 4, labels m, scores m, masks m h w, as `Detector` gives them."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.net: Any = detector.net

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        size = (image.shape[-2], image.shape[-1])
        images, _ = self.net.transform([in_colour(self.net, image)[0]])
        [seen], maps, heads = images.image_sizes, self.net.backbone(images.tensors), self.net.roi_heads
        proposals = [self.proposed(images, maps)]
        features = heads.box_head(heads.box_roi_pool(maps, proposals, [seen]))
        logits, deltas = heads.box_predictor(features)
        boxes, labels, scores = self.told(proposals, logits, deltas, seen)
        features = heads.mask_head(heads.mask_roi_pool(maps, [boxes], [seen]))
        masks = heads.mask_predictor(features)[torch.arange(len(labels)), labels].sigmoid()
        found = (scores > 0).nonzero().squeeze(1)
        boxes = resize_boxes(boxes, seen, size)[found]
        return boxes, labels[found] - 1, scores[found], pasted(masks[found], boxes, size) >= LEAST

    def proposed(self, images: Any, maps: dict[str, Tensor]) -> Tensor:
        """Where objects may be.   ->   proposals 4"""
        rpn, levels = self.net.rpn, list(maps.values())
        objectness, deltas = rpn.head(levels)
        counts = [each[0].numel() for each in objectness]
        anchors = rpn.anchor_generator(images, levels)
        objectness, deltas = concat_box_prediction_layers(objectness, deltas)
        top = rpn._get_top_n_idx(objectness.reshape(1, -1), counts)[0]
        level = torch.cat([torch.full((count,), i) for i, count in enumerate(counts)])[top]
        boxes = clip_boxes_to_image(rpn.box_coder.decode(deltas, anchors)[top, 0], images.image_sizes[0])
        scores = objectness.reshape(-1)[top].sigmoid()
        kept, _ = best(boxes, scores, level, side=rpn.min_size, overlap=rpn.nms_thresh, most=rpn.post_nms_top_n())
        return boxes[kept.clamp(min=0)] * (kept >= 0).unsqueeze(1)

    def told(
        self, proposals: list[Tensor], logits: Tensor, deltas: Tensor, seen: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What they are.   ->   boxes m 4, labels m from 1 on, scores m, 0 where there is none"""
        heads, k = self.net.roi_heads, logits.shape[1] - 1
        boxes = clip_boxes_to_image(heads.box_coder.decode(deltas, proposals), seen)[:, 1:].reshape(-1, 4)
        scores = logits.softmax(1)[:, 1:].reshape(-1)
        labels = torch.arange(1, k + 1).repeat(len(logits))
        sure = torch.where(scores > heads.score_thresh, scores, 0)
        kept, ranked = best(
            boxes, sure, labels, side=SMALL, overlap=heads.nms_thresh, most=heads.detections_per_img, least=0
        )
        return boxes[kept.clamp(min=0)], labels[kept.clamp(min=0)], ranked.clamp(min=0)


def best(
    boxes: Tensor, scores: Tensor, groups: Tensor, *, side: float, overlap: float, most: int, least: float = -1
) -> tuple[Tensor, Tensor]:
    """The best boxes of which none covers another of its group, the best first.

    boxes: n 4, in the image    scores: n, above `least`    groups: n    ->    indices, scores: m = min(n, `most`), both
    -1 where there are no more
    """
    n, sides = len(boxes), boxes[:, 2:] - boxes[:, :2]
    sound = (sides >= side).all(1) & (scores > least)
    apart = boxes + (groups * (boxes.max() + 1)).unsqueeze(1)
    # all others lie in one place outside, where the first suppresses the rest: they take no time
    apart = torch.where(sound.unsqueeze(1), apart, torch.tensor(OUTSIDE[0]))
    scores = torch.where(sound, scores, -1)
    # two more are always kept: to exporters torchvision declares that nms never keeps fewer
    kept = nms(torch.cat([apart, torch.tensor(OUTSIDE)]), F.pad(scores, (0, 2), value=-1.0), overlap)
    alone = torch.zeros(n + 2, dtype=torch.bool).index_put((kept,), torch.tensor(True))[:n]
    ranked, index = torch.where(alone & sound, scores, -1).topk(min(most, n))
    return torch.where(ranked >= 0, index, -1), ranked


def pasted(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Probabilities inside boxes as probabilities in the image, 0 outside.   m s s, m 4   ->   m h w

    Bilinear, as torchvision has it, but as products with the weights of all rows and columns.
    """
    s = masks.shape[-1] + 2  # a border of zeros
    grown = s / masks.shape[-1] / 2
    centre, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) * grown
    first, last = (centre - half).long(), (centre + half).long()
    columns, rows = (
        weights(first[:, axis], last[:, axis], s, length) for axis, length in enumerate((size[1], size[0]))
    )
    return rows @ F.pad(masks, (1, 1, 1, 1)) @ columns.mT


def weights(first: Tensor, last: Tensor, s: int, length: int) -> Tensor:
    """How much of s values stretched over pixels first ... last each pixel takes.   m, m   ->   m length s"""
    wide = (last - first + 1).clamp(min=1).unsqueeze(1)
    pixel = torch.arange(length) - first.unsqueeze(1)
    place = ((pixel + 0.5) * (s / wide) - 0.5).clamp(0, s - 1)
    hat = (1 - (place.unsqueeze(2) - torch.arange(s)).abs()).clamp(min=0)
    return hat * ((pixel >= 0) & (pixel < wide)).unsqueeze(2)


def in_colour(net: Any, image: Tensor) -> Tensor:
    """Normalised images as the detector takes them: it normalises by itself."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (net.transform.image_mean, net.transform.image_std))
    return image * std + mean


# ----------------------------------------------------------------------------------------------------------------------
# How a detector looks to other programs.


OUTPUTS = ("boxes", "labels", "scores", "masks")
SAME_BOX = 0.99  # overlap
SAME_MASK, STRAY = 0.95, 4  # overlap, or pixels of a small mask that are in one of them only


def objects(size: int) -> Graph:
    return Graph(
        size=(size, size),
        outputs=OUTPUTS,
        judge=judge_objects,
        differ="scores",
        alike="class, box and mask agree",
        answer="objects",
        least=0.98,  # rounding may lift one over the least score, or over a neighbour
        written=FixedDetector,
        asked=found_in,
        free=(),
        fixed="all boxes there can be in one image of this size are part of the graph; write a file for each size with "
        "--size height,width",
    )


def found_in(detector: Any, image: Tensor) -> Outputs:
    """The detector itself, asked as the file is."""
    [found] = detector([in_colour(detector.net, image)[0]])
    return tuple(found[name] for name in OUTPUTS)


def judge_objects(ours: Outputs, theirs: Outputs) -> Judged:
    """Every object beside the other's of its class that covers its box best, whichever place that has in the list."""
    boxes, labels, scores, masks = ours
    others, other_labels, other_scores, other_masks = theirs
    same = torch.zeros(max(len(boxes), len(others)), dtype=torch.bool)
    if len(boxes) == 0 or len(others) == 0:
        return Judged(0.0, float(scores.max()) if len(scores) else 0.0, same)
    overlap, partner = (box_iou(boxes, others) * (labels.unsqueeze(1) == other_labels)).max(1)
    other_masks = other_masks[partner]
    stray, either = ((masks ^ other_masks).sum((1, 2)), (masks | other_masks).sum((1, 2)))
    same[: len(boxes)] = (overlap >= SAME_BOX) & (stray <= ((1 - SAME_MASK) * either).clamp(min=STRAY))
    differences = (scores - other_scores[partner])[same[: len(boxes)]].abs()
    return Judged(float(differences.max()) if len(differences) else 0.0, float(scores.max()), same)
