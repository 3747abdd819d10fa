"""Predict whole images (single scale, or multi-scale with flip and sliding window) and compute mIoU on a split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.segmentation.data.base import SegmentationSet
from hamburger.training.image_files import normalise
from hamburger.training.supervised import (
    SINGLE_SCALE,
    Confusion,
    EvaluationProtocol,
    accuracy,
    evaluation_mode,
    iou,
    miou,
    read_share,
    scores_by_class,
)


def predict_probabilities(net: nn.Module, x: Tensor, protocol: EvaluationProtocol = SINGLE_SCALE) -> Tensor:
    """Return class probabilities averaged over all views.   x: b 3 h w, normalised   ->   b k h w, float32"""
    h, w = x.shape[-2:]
    total: Tensor | None = None
    for scale in protocol.scales:
        size = (max(1, round(scale * h)), max(1, round(scale * w)))
        # resized as in training: no aligned corners, no antialiasing
        view = x if size == (h, w) else F.interpolate(x, size=size, mode="bilinear")
        for flipped in (False, True) if protocol.flip else (False,):
            probabilities = _average_windows(net, view.flip(-1) if flipped else view, protocol)
            probabilities = probabilities.flip(-1) if flipped else probabilities
            if size != (h, w):
                probabilities = F.interpolate(probabilities, size=(h, w), mode="bilinear")
            total = probabilities if total is None else total.add_(probabilities)
    assert total is not None
    return total / (len(protocol.scales) * (2 if protocol.flip else 1))


def predict_scores(net: nn.Module, x: Tensor, protocol: EvaluationProtocol = SINGLE_SCALE) -> Tensor:
    """Return scores whose largest is the most probable class of a pixel.   b 3 h w   ->   b k h w"""
    if protocol == SINGLE_SCALE:  # logits: softmax does not change the order
        logits: Tensor = net(x)
        return logits
    return predict_probabilities(net, x, protocol)


def predict_labels(net: nn.Module, x: Tensor, protocol: EvaluationProtocol = SINGLE_SCALE) -> Tensor:
    """Return the most probable class of each pixel.   b 3 h w   ->   b h w, int64"""
    return predict_scores(net, x, protocol).max(1).indices  # on a CPU 5 to 20 times faster than argmax


def _average_windows(net: nn.Module, x: Tensor, protocol: EvaluationProtocol) -> Tensor:
    """Return probabilities of the whole image, or averaged over sliding windows.   b 3 h w   ->   b k h w"""
    window, stride = protocol.window, protocol.stride
    h, w = x.shape[-2:]
    if window is None or stride is None or (h <= window and w <= window):
        return net(x).float().softmax(1)
    total: Tensor | None = None
    count = x.new_zeros(1, 1, h, w)
    for top in _window_starts(h, window, stride):
        for left in _window_starts(w, window, stride):
            region = (..., slice(top, top + window), slice(left, left + window))
            probabilities = net(x[region]).float().softmax(1)
            if total is None:
                total = probabilities.new_zeros(*probabilities.shape[:2], h, w)
            total[region] += probabilities
            count[region] += 1
    assert total is not None
    return total / count


def _window_starts(length: int, window: int, stride: int) -> list[int]:
    """Return where windows begin along an axis: every `stride`, and a last one that ends at the edge."""
    last = max(0, length - window)
    return [*range(0, last, stride), last]


# -- scores ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SegmentationScores:
    """Scores in [0, 1]; a class that is neither labelled nor predicted is None and not part of the mean."""

    miou: float
    pixel_accuracy: float
    per_class: dict[str, float | None]
    protocol: str
    images: int

    @classmethod
    def of(cls, counts: Confusion, dataset: SegmentationSet, protocol: EvaluationProtocol) -> SegmentationScores:
        return cls(
            miou=miou(counts.matrix),
            pixel_accuracy=accuracy(counts.matrix),
            per_class=scores_by_class(dataset.classes, iou(counts.matrix)),
            protocol=str(protocol),
            images=len(dataset),
        )


def evaluate_segmenter(
    net: nn.Module,
    dataset: SegmentationSet,
    *,
    device: torch.device,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    protocol: EvaluationProtocol = SINGLE_SCALE,
    channels_last: bool = False,
    workers: int = 0,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> SegmentationScores:
    """Return the scores of a network on every image at full size, shared among the processes.

    `net` maps b 3 h w to logits b k h w; its training mode is restored. Images run one by one, so that the result
    depends on the image alone. `progress` gets (done, total) before each image, and may stop by raising.
    """
    counts = Confusion(len(dataset.classes))
    with evaluation_mode(net, fixed_size=False):  # nearly every image has its own size
        for _, sample in read_share(dataset, workers, progress):
            x = normalise(sample.image.to(device), mean, std)[None]
            x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
            counts.update(predict_labels(net, x, protocol), sample.label.to(device)[None])
    counts.gather(device)
    return SegmentationScores.of(counts, dataset, protocol)
