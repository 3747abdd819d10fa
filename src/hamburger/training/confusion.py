"""How often each class was taken for each other, counted over a whole set, and the scores made of it."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.errors import InputError, ShapeError, check_count

IGNORE = 255


def confusion(prediction: Tensor, label: Tensor, k: int) -> Tensor:
    """Pixels by (label, prediction); what is labelled 255 does not count.   ... , ... ->   k k, int64

    `prediction` is 0 ... k - 1 everywhere, `label` is 0 ... k - 1 or 255.
    """
    if prediction.shape != label.shape:
        raise ShapeError(
            f"confusion: prediction {tuple(prediction.shape)} and label {tuple(label.shape)} must have one shape"
        )
    valid = label != IGNORE
    index = label[valid].long() * k + prediction[valid].long()
    counts = torch.bincount(index, minlength=k * k)
    if counts.numel() > k * k:  # free of charge: bincount has looked at the largest anyway
        raise InputError(
            f"confusion: label {(counts.numel() - 1) // k} is outside the {k} classes; labels are 0 to {k - 1}, "
            f"and {IGNORE} where unlabelled"
        )
    return counts.view(k, k)


class Confusion:
    """The sum of `confusion` over many images; whole numbers, so that order and grouping change nothing."""

    def __init__(self, k: int) -> None:
        check_count("Confusion", "k", k, least=1)
        self.k = k
        self.matrix = torch.zeros(k, k, dtype=torch.int64)

    def update(self, prediction: Tensor, label: Tensor) -> None:
        self.matrix += confusion(prediction, label, self.k).cpu()

    def gather(self, device: torch.device) -> None:
        """Add up what all processes have counted; `device` is where they meet."""
        self.matrix = distributed.sum_over_ranks(self.matrix.to(device)).cpu()


def iou(matrix: Tensor) -> Tensor:
    """Intersection over union of each class, NaN for one that is neither labelled nor predicted.   k k   ->   k"""
    hit = matrix.diagonal().double()
    union = (matrix.sum(0) + matrix.sum(1)).double() - hit
    return hit / union


def miou(matrix: Tensor) -> float:
    """Mean over the classes that are labelled or predicted somewhere; NaN where nothing is labelled."""
    return float(iou(matrix).nanmean())


def pixel_accuracy(matrix: Tensor) -> float:
    """Share of the labelled pixels that are right."""
    return float(matrix.diagonal().sum().double() / matrix.sum().double())
