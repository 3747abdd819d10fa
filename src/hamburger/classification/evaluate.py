"""Accuracy of a classifier on a set of images."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hamburger import distributed
from hamburger.classification.data.load import ImageSet
from hamburger.training.confusion import Confusion, pixel_accuracy


@dataclass(frozen=True)
class ClassScores:
    """Between 0 and 1; `per_class` is the share of a class's images that are named rightly, None where it has none."""

    accuracy: float
    per_class: dict[str, float | None]
    protocol: str
    images: int


def to_model_input(pixels: Tensor) -> Tensor:
    """What a classifier takes, as it was trained.   b 3 h w uint8   ->   the same in [-1, 1]"""
    return pixels.float() / 127.5 - 1


@torch.no_grad()  # not inference mode: modules may keep what they make here, and train with it later
def evaluate_classes(
    net: nn.Module,
    images: ImageSet,
    *,
    device: torch.device,
    batch: int = 128,
    channels_last: bool = False,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> ClassScores:
    """Every image once, as it is, shared among the processes. `net` is left in the mode it came in."""
    counts = Confusion(len(images.classes))
    training = net.training
    net.eval()
    try:
        mine = torch.arange(distributed.rank(), len(images), distributed.world())
        for place, some in enumerate(mine.split(batch)):
            progress(batch * place, len(mine))
            x = to_model_input(torch.from_numpy(images.images[some.numpy()]).to(device))
            x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
            counts.update(net(x).argmax(1).cpu(), torch.from_numpy(images.labels[some.numpy()]))
    finally:
        net.train(training)
    counts.gather(device)
    right = (counts.matrix.diagonal().double() / counts.matrix.sum(1).double()).tolist()
    return ClassScores(
        accuracy=pixel_accuracy(counts.matrix),
        per_class={n: None if math.isnan(v) else v for n, v in zip(images.classes, right, strict=True)},
        protocol="top-1, one view",
        images=len(images),
    )
