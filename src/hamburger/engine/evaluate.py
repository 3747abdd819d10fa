"""Scores of a network on a split, pooled over all of its pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hamburger import distributed
from hamburger.data.base import SegmentationSet
from hamburger.data.detection.base import DetectionSet
from hamburger.data.evaluation import evaluation_batches
from hamburger.engine.probabilities import SINGLE, Protocol, labels
from hamburger.errors import OptionError, ShapeError
from hamburger.metrics.confusion import Confusion, iou, miou, pixel_accuracy


@dataclass(frozen=True)
class Scores:
    """Between 0 and 1. A class that is neither labelled nor predicted has None and is not in the mean."""

    miou: float
    pixel_accuracy: float
    per_class: dict[str, float | None]
    protocol: str
    images: int

    @classmethod
    def of(cls, counts: Confusion, dataset: SegmentationSet, protocol: Protocol) -> Scores:
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
    protocol: Protocol = SINGLE,
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
    protocol: Protocol = SINGLE,
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
                    count.update(labels(net, x, protocol), truth)
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


def check_classes(call: str, known: Sequence[str], dataset: SegmentationSet | DetectionSet) -> None:
    """Weights and data must speak of the same classes, in the same order."""
    if len(known) != len(dataset.classes):
        raise ShapeError(
            f"{call}: the weights know {len(known)} classes, the data set '{dataset.name}' has "
            f"{len(dataset.classes)}; give the data set and options that the weights were trained with"
        )
    for i, (ours, theirs) in enumerate(zip(known, dataset.classes, strict=True)):
        if ours != theirs:
            raise OptionError(
                f"{call}: class {i} is '{ours}' to the weights and '{theirs}' in the data set '{dataset.name}'; "
                f"name and order the classes as the weights were trained with: {', '.join(known)}"
            )
