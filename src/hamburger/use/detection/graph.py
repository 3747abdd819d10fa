"""How a detector looks to other programs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchvision.ops import box_iou

from hamburger.engine.graph import Graph, Judged, Outputs
from hamburger.use.detection.fixed import FixedDetector, in_colour

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
