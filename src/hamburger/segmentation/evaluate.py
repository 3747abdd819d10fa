"""mIoU and pixel accuracy of a network on a split: single scale, or multi-scale with flip and sliding window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger import distributed
from hamburger.segmentation.data.base import SegmentationSet
from hamburger.segmentation.data.batches import evaluation_batches
from hamburger.training.confusion import Confusion, iou, miou, pixel_accuracy
from hamburger.training.protocol import SINGLE_SCALE, EvaluationProtocol


def predict_probabilities(net: nn.Module, x: Tensor, protocol: EvaluationProtocol = SINGLE_SCALE) -> Tensor:
    """Mean of the softmax over all views.   x: b 3 h w, normalised   ->   b k h w, float32"""
    h, w = x.shape[-2:]
    total: Tensor | None = None
    for scale in protocol.scales:
        size = (max(1, round(scale * h)), max(1, round(scale * w)))
        # as training resizes: pixels are squares, and what shrinks is not smoothed first
        view = x if size == (h, w) else F.interpolate(x, size=size, mode="bilinear")
        for flipped in (False, True) if protocol.flip else (False,):
            found = _windows(net, view.flip(-1) if flipped else view, protocol)
            found = found.flip(-1) if flipped else found
            if size != (h, w):
                found = F.interpolate(found, size=(h, w), mode="bilinear")
            total = found if total is None else total.add_(found)
    assert total is not None
    return total / (len(protocol.scales) * (2 if protocol.flip else 1))


def predict_labels(net: nn.Module, x: Tensor, protocol: EvaluationProtocol = SINGLE_SCALE) -> Tensor:
    """The likeliest class of each pixel.   b 3 h w   ->   b h w, int64"""
    if protocol == SINGLE_SCALE:  # the softmax keeps the order
        return net(x).argmax(1)
    return predict_probabilities(net, x, protocol).argmax(1)


def _windows(net: nn.Module, x: Tensor, protocol: EvaluationProtocol) -> Tensor:
    """b 3 h w   ->   b k h w: all at once, or the mean over the windows that see a pixel."""
    window, stride = protocol.window, protocol.stride
    h, w = x.shape[-2:]
    if window is None or stride is None or (h <= window and w <= window):
        return net(x).float().softmax(1)
    total: Tensor | None = None
    count = x.new_zeros(1, 1, h, w)
    for top in _starts(h, window, stride):
        for left in _starts(w, window, stride):
            place = (..., slice(top, top + window), slice(left, left + window))
            found = net(x[place]).float().softmax(1)
            if total is None:
                total = found.new_zeros(found.shape[0], found.shape[1], h, w)
            total[place] += found
            count[place] += 1
    assert total is not None
    return total / count


def _starts(length: int, window: int, stride: int) -> Iterator[int]:
    """Where windows begin along an axis: every `stride`, and the last flush with the end."""
    last = max(0, length - window)
    yield from range(0, last, stride)
    yield last


# ----------------------------------------------------------------------------------------------------------------------
# Scores of a network on a split, pooled over all of its pixels.


@dataclass(frozen=True)
class Scores:
    """Between 0 and 1. A class that is neither labelled nor predicted has None and is not in the mean."""

    miou: float
    pixel_accuracy: float
    per_class: dict[str, float | None]
    protocol: str
    images: int

    @classmethod
    def of(cls, counts: Confusion, dataset: SegmentationSet, protocol: EvaluationProtocol) -> Scores:
        each = iou(counts.matrix).tolist()
        return cls(
            miou=miou(counts.matrix),
            pixel_accuracy=pixel_accuracy(counts.matrix),
            per_class={
                name: None if math.isnan(value) else value for name, value in zip(dataset.classes, each, strict=True)
            },
            protocol=str(protocol),
            images=len(dataset),
        )


def evaluate(
    net: nn.Module,
    dataset: SegmentationSet,
    *,
    device: torch.device,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    protocol: EvaluationProtocol = SINGLE_SCALE,
    channels_last: bool = False,
    batch: int = 1,
    workers: int = 0,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> Scores:
    """Every image in full size, shared among the processes; counts are added, so nothing depends on how.

    `net` maps b 3 h w to logits b k h w and is left in the mode it came in. Up to `batch` images of one size go
    together, which may change the last bit of a logit; one by one, nothing but the image decides. `progress` hears
    (done, total) before each batch of this process, and may stop the work by raising.
    """
    (scores,) = evaluate_ways(
        net,
        dataset,
        [lambda: None],
        device=device,
        mean=mean,
        std=std,
        protocol=protocol,
        channels_last=channels_last,
        batch=batch,
        workers=workers,
        progress=progress,
    )
    return scores


@torch.no_grad()  # not inference mode: modules may keep what they make here, and train with it later
def evaluate_ways(
    net: nn.Module,
    dataset: SegmentationSet,
    ways: Sequence[Callable[[], object]],
    *,
    device: torch.device,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    protocol: EvaluationProtocol = SINGLE_SCALE,
    channels_last: bool = False,
    batch: int = 1,
    workers: int = 0,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> list[Scores]:
    """As `evaluate`, in several ways at once: each changes what `net` does behind its backbone, whose maps they share.

    The scores are those of as many evaluations, in the order of the ways; most of their work is done once.
    """
    rank, world = distributed.rank(), distributed.world()
    counts = [Confusion(len(dataset.classes)) for _ in ways]
    training = net.training
    net.eval()
    done, total = 0, len(range(rank, len(dataset), world))
    feed = evaluation_batches(
        dataset, batch=batch, device=device, rank=rank, world=world, workers=workers, mean=mean, std=std
    )
    tuning = torch.backends.cudnn.benchmark
    # trying out algorithms pays for a size that returns in every batch; here nearly every image has its own
    torch.backends.cudnn.benchmark = False
    try:
        for images, truth, ids in feed:
            progress(done, total)
            x = images.contiguous(memory_format=torch.channels_last) if channels_last else images
            with _once(net.backbone) if len(ways) > 1 else nullcontext(_nothing) as again:
                for way, count in zip(ways, counts, strict=True):
                    way()
                    again()
                    count.update(predict_labels(net, x, protocol), truth)
            done += len(ids)
    finally:
        torch.backends.cudnn.benchmark = tuning
        net.train(training)
    progress(done, total)
    for count in counts:
        count.gather(device)
    return [Scores.of(count, dataset, protocol) for count in counts]


def _nothing() -> None:
    """There is one way only."""


@contextmanager
def _once(backbone: Any) -> Iterator[Callable[[], None]]:
    """A backbone that is called again as before answers as before; what is yielded begins the calls anew."""
    original = backbone.forward
    kept: list[Any] = []
    at = 0

    def begin() -> None:
        nonlocal at
        at = 0

    def forward(x: Any) -> Any:
        nonlocal at
        if at == len(kept):
            kept.append(original(x))
        at += 1
        return list(kept[at - 1])

    backbone.forward = forward
    try:
        yield begin
    finally:
        del backbone.forward
