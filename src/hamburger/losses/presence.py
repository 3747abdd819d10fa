"""Which classes are in the image: the semantic encoding loss of EncNet, the category loss of SANet."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.losses.mean import joined_mean
from hamburger.losses.pixels import IGNORE
from hamburger.precision import widen
from hamburger.shapes import check_shapes


def present(target: Tensor, num_classes: int) -> Tensor:
    """1 where a class has at least one pixel of the image; 255 is no class.   b h w   ->   b k, bool"""
    labels = torch.where(target == IGNORE, num_classes, target).flatten(1)
    found = torch.zeros(len(target), num_classes + 1, dtype=torch.bool, device=target.device)
    return found.scatter(1, labels, True)[:, :num_classes]


def labelled_images(target: Tensor) -> Tensor:
    """b h w   ->   b, whether an image has any label"""
    return (target != IGNORE).flatten(1).any(1)


def presence(logits: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy, the mean over classes and over the images of all processes.   logits: b k   target: b h w

    An image without a single labelled pixel says nothing about what it shows, and counts nowhere. (The authors of
    EncNet take it for an image without any class.) Where there are no other images the loss is zero, not NaN.
    """
    check_shapes("presence", logits=(logits, "b k"), target=(target, "b h w"))
    k = logits.shape[1]
    labelled = labelled_images(target)
    wide = widen(logits)
    loss = F.binary_cross_entropy_with_logits(wide, present(target, k).to(wide.dtype), reduction="none").mean(1)
    return joined_mean((loss * labelled).sum(), labelled.sum())
