"""Top-1 accuracy of a classifier on a split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hamburger import distributed
from hamburger.classification.data.base import ImageSet
from hamburger.classification.data.batches import to_model_input
from hamburger.training.supervised import Confusion, accuracy, evaluation_mode, scores_by_class


@dataclass(frozen=True)
class ClassificationScores:
    """Scores in [0, 1]; `per_class` is the recall of each class, None for a class without images."""

    accuracy: float
    per_class: dict[str, float | None]
    protocol: str
    images: int


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
    indices = torch.arange(distributed.rank(), len(images), distributed.world_size())
    with evaluation_mode(net):
        for number, chosen in enumerate(indices.split(batch)):
            progress(batch * number, len(indices))
            x = to_model_input(torch.from_numpy(images.images[chosen.numpy()]).to(device))
            x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
            counts.update(net(x).argmax(1).cpu(), torch.from_numpy(images.labels[chosen.numpy()]))
    counts.gather(device)
    recalls = counts.matrix.diagonal().double() / counts.matrix.sum(1).double()
    return ClassificationScores(
        accuracy=accuracy(counts.matrix),
        per_class=scores_by_class(images.classes, recalls),
        protocol="top-1, one view",
        images=len(images),
    )
