"""Mask R-CNN as one graph for one image size, for torch.export and ONNX."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.models.detection.transform import resize_boxes
from torchvision.ops import box_iou, clip_boxes_to_image, nms

from hamburger.detection.model import MASK_THRESHOLD
from hamburger.inference.export import ExportSpec, OutputComparison, Outputs

MIN_SIDE = 1e-2  # torchvision drops boxes with a shorter side
DUMMY_BOXES = ((-2.0, -2.0, -1.0, -1.0), (-4.0, -4.0, -3.0, -3.0))  # overlap no box in an image


class FixedDetector(nn.Module):
    """A `Detector` for one image, without branches on data.

    1 3 h w, normalised   ->   boxes m 4, labels m, scores m, masks m h w, as `Detector` returns them
    """

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.net: Any = detector.net

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        size = (image.shape[-2], image.shape[-1])
        images, _ = self.net.transform([denormalise(self.net, image)[0]])
        [resized], maps, heads = images.image_sizes, self.net.backbone(images.tensors), self.net.roi_heads
        proposals = [self.propose(images, maps)]
        features = heads.box_head(heads.box_roi_pool(maps, proposals, [resized]))
        logits, deltas = heads.box_predictor(features)
        boxes, labels, scores = self.classify(proposals, logits, deltas, resized)
        features = heads.mask_head(heads.mask_roi_pool(maps, [boxes], [resized]))
        masks = heads.mask_predictor(features)[torch.arange(len(labels)), labels].sigmoid()
        keep = (scores > 0).nonzero().squeeze(1)
        boxes = resize_boxes(boxes, resized, size)[keep]
        return boxes, labels[keep] - 1, scores[keep], paste_masks(masks[keep], boxes, size) >= MASK_THRESHOLD

    def propose(self, images: Any, maps: dict[str, Tensor]) -> Tensor:
        """Boxes where objects may be.   ->   proposals 4"""
        rpn, levels = self.net.rpn, list(maps.values())
        objectness, deltas = rpn.head(levels)
        counts = [each[0].numel() for each in objectness]
        anchors = rpn.anchor_generator(images, levels)
        objectness, deltas = concat_box_prediction_layers(objectness, deltas)
        top = rpn._get_top_n_idx(objectness.reshape(1, -1), counts)[0]
        level = torch.cat([torch.full((count,), i) for i, count in enumerate(counts)])[top]
        boxes = clip_boxes_to_image(rpn.box_coder.decode(deltas, anchors)[top, 0], images.image_sizes[0])
        scores = objectness.reshape(-1)[top].sigmoid()
        keep, _ = select_boxes(
            boxes, scores, level, side=rpn.min_size, overlap=rpn.nms_thresh, most=rpn.post_nms_top_n()
        )
        return boxes[keep.clamp(min=0)] * (keep >= 0).unsqueeze(1)

    def classify(
        self, proposals: list[Tensor], logits: Tensor, deltas: Tensor, size: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best objects among the proposals.   ->   boxes m 4, labels m from 1 on, scores m, 0 for unused places"""
        heads, k = self.net.roi_heads, logits.shape[1] - 1
        boxes = clip_boxes_to_image(heads.box_coder.decode(deltas, proposals), size)[:, 1:].reshape(-1, 4)
        scores = logits.softmax(1)[:, 1:].reshape(-1)
        labels = torch.arange(1, k + 1).repeat(len(logits))
        scores = torch.where(scores > heads.score_thresh, scores, 0)
        keep, ranked = select_boxes(
            boxes, scores, labels, side=MIN_SIDE, overlap=heads.nms_thresh, most=heads.detections_per_img, least=0
        )
        return boxes[keep.clamp(min=0)], labels[keep.clamp(min=0)], ranked.clamp(min=0)


def select_boxes(
    boxes: Tensor, scores: Tensor, groups: Tensor, *, side: float, overlap: float, most: int, least: float = -1
) -> tuple[Tensor, Tensor]:
    """Non-maximum suppression per group with an output of fixed length, the highest scores first.

    Boxes with a side below `side`, or a score of `least` or less, are dropped.
    boxes: n 4, in the image    scores: n    groups: n    ->    indices, scores: m = min(n, `most`), -1 if unused
    """
    n, sides = len(boxes), boxes[:, 2:] - boxes[:, :2]
    valid = (sides >= side).all(1) & (scores > least)
    shifted = boxes + (groups * (boxes.max() + 1)).unsqueeze(1)
    # invalid boxes are moved to one place outside, where the first suppresses the rest at once
    shifted = torch.where(valid.unsqueeze(1), shifted, torch.tensor(DUMMY_BOXES[0]))
    scores = torch.where(valid, scores, -1)
    # two dummy boxes always survive: torchvision tells exporters that nms keeps at least two
    keep = nms(torch.cat([shifted, torch.tensor(DUMMY_BOXES)]), F.pad(scores, (0, 2), value=-1.0), overlap)
    survived = torch.zeros(n + 2, dtype=torch.bool).index_put((keep,), torch.tensor(True))[:n]
    ranked, index = torch.where(survived & valid, scores, -1).topk(min(most, n))
    return torch.where(ranked >= 0, index, -1), ranked


def paste_masks(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Mask probabilities inside boxes, resized into the image, 0 outside.   m s s, m 4   ->   m h w

    Bilinear, as in torchvision, but written as matrix products with the weights of all rows and columns.
    """
    s = masks.shape[-1] + 2  # a border of zeros
    grown = s / masks.shape[-1] / 2
    centre, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) * grown
    first, last = (centre - half).long(), (centre + half).long()
    columns, rows = (
        resize_weights(first[:, axis], last[:, axis], s, length) for axis, length in enumerate((size[1], size[0]))
    )
    return rows @ F.pad(masks, (1, 1, 1, 1)) @ columns.mT


def resize_weights(first: Tensor, last: Tensor, s: int, length: int) -> Tensor:
    """Bilinear weights that stretch s values over the pixels first ... last.   m, m   ->   m length s"""
    width = (last - first + 1).clamp(min=1).unsqueeze(1)
    pixel = torch.arange(length) - first.unsqueeze(1)
    position = ((pixel + 0.5) * (s / width) - 0.5).clamp(0, s - 1)
    hat = (1 - (position.unsqueeze(2) - torch.arange(s)).abs()).clamp(min=0)
    return hat * ((pixel >= 0) & (pixel < width)).unsqueeze(2)


def denormalise(net: Any, image: Tensor) -> Tensor:
    """Images in [0, 1] from normalised ones, since the detector normalises its input itself."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (net.transform.image_mean, net.transform.image_std))
    return image * std + mean


# -- export specification ----------------------------------------------------------------------------------------------

OUTPUTS = ("boxes", "labels", "scores", "masks")
MIN_BOX_OVERLAP = 0.99
MIN_MASK_OVERLAP, MAX_STRAY_PIXELS = 0.95, 4  # a small mask may differ by so many pixels


def detector_export_spec(size: int) -> ExportSpec:
    """How a detector for images of size x size is exported, and how the file is compared with it."""
    return ExportSpec(
        size=(size, size),
        outputs=OUTPUTS,
        compare=compare_objects,
        values="scores",
        agreement="class, box and mask agree",
        predictions="objects",
        least=0.98,  # rounding may lift an object over the score threshold or above a neighbour
        exported=FixedDetector,
        reference=run_detector,
        dynamic=(),
        static_reason="the anchors of one image size are constants of the graph; write a file for each size with "
        "--size height,width",
    )


def run_detector(detector: Any, image: Tensor) -> Outputs:
    """The detector's own output, for the input and with the outputs of the exported graph."""
    [objects] = detector([denormalise(detector.net, image)[0]])
    return tuple(objects[name] for name in OUTPUTS)


def compare_objects(ours: Outputs, theirs: Outputs) -> OutputComparison:
    """Compare each object with the other output's object of its class whose box overlaps it most, in any order."""
    boxes, labels, scores, masks = ours
    others, other_labels, other_scores, other_masks = theirs
    same = torch.zeros(max(len(boxes), len(others)), dtype=torch.bool)
    if len(boxes) == 0 or len(others) == 0:
        return OutputComparison(0.0, float(scores.max()) if len(scores) else 0.0, same)
    overlap, partner = (box_iou(boxes, others) * (labels.unsqueeze(1) == other_labels)).max(1)
    other_masks = other_masks[partner]
    stray, either = ((masks ^ other_masks).sum((1, 2)), (masks | other_masks).sum((1, 2)))
    allowed = ((1 - MIN_MASK_OVERLAP) * either).clamp(min=MAX_STRAY_PIXELS)
    same[: len(boxes)] = (overlap >= MIN_BOX_OVERLAP) & (stray <= allowed)
    differences = (scores - other_scores[partner])[same[: len(boxes)]].abs()
    return OutputComparison(float(differences.max()) if len(differences) else 0.0, float(scores.max()), same)
