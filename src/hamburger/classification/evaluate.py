"""Top-1 accuracy of a classifier on a split."""

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
class ClassificationScores:
    """Scores in [0, 1]; `per_class` is the recall of each class, None for a class without images."""

    accuracy: float
    per_class: dict[str, float | None]
    protocol: str
    images: int


def to_model_input(pixels: Tensor) -> Tensor:
    """Scale images as in training.   b 3 h w, uint8   ->   b 3 h w in [-1, 1]"""
    return pixels.float() / 127.5 - 1


@torch.no_grad()  # not inference mode: modules may cache tensors here and use them in training later
def evaluate_classifier(
    net: nn.Module,
    images: ImageSet,
    *,
    device: torch.device,
    batch: int = 128,
    channels_last: bool = False,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> ClassificationScores:
    """Return the scores on every image, shared among the processes; restores the training mode of `net`."""
    counts = Confusion(len(images.classes))
    training = net.training
    net.eval()
    try:
        indices = torch.arange(distributed.rank(), len(images), distributed.world_size())
        for number, chosen in enumerate(indices.split(batch)):
            progress(batch * number, len(indices))
            x = to_model_input(torch.from_numpy(images.images[chosen.numpy()]).to(device))
            x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
            counts.update(net(x).argmax(1).cpu(), torch.from_numpy(images.labels[chosen.numpy()]))
    finally:
        net.train(training)
    counts.gather(device)
    recalls = (counts.matrix.diagonal().double() / counts.matrix.sum(1).double()).tolist()
    return ClassificationScores(
        accuracy=pixel_accuracy(counts.matrix),
        per_class={n: None if math.isnan(v) else v for n, v in zip(images.classes, recalls, strict=True)},
        protocol="top-1, one view",
        images=len(images),
    )
