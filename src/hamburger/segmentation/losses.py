"""Segmentation losses; pixels labelled 255 do not count."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.contexts.common import grid_resize
from hamburger.errors import check_count, check_positive
from hamburger.precision import full_precision, widen
from hamburger.shapes import check_shapes
from hamburger.training.loss_weighting import global_mean

IGNORE = 255


def resize_logits(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, corners aligned, as the original networks have it.   b k h w   ->   b k H W, at least float32

    Widened first: a gradient that comes back is the sum over some thousand pixels, which half precision cannot hold.
    """
    wide = widen(logits)
    if tuple(wide.shape[-2:]) == tuple(size):
        return wide
    if wide.is_cuda and torch.is_grad_enabled():
        # torch's CUDA gradient of this resize adds in no fixed order and took a third of a training step (ResNet-50,
        # crop 353, H200); two products give the same values with a gradient that is fast and repeatable
        with full_precision(wide.device.type):
            return grid_resize(wide, size)
    return F.interpolate(wide, size=size, mode="bilinear", align_corners=True)


# ----------------------------------------------------------------------------------------------------------------------
# Cross-entropy per pixel, averaged as one process with the joined batch would average it.


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over the labelled pixels of all processes.   logits: b k h w    target: b H W, 255 where unlabelled

    Logits are resized to the labels by `to_pixels`. A batch without any label gives zero rather than NaN. Processes
    that hold different numbers of labelled pixels still average, through DDP's mean of gradients, to what one process
    would compute.
    """
    height, width = target.shape[-2:]
    summed = F.cross_entropy(resize_logits(logits, (height, width)), target, ignore_index=IGNORE, reduction="sum")
    return global_mean(summed, (target != IGNORE).sum())


# ----------------------------------------------------------------------------------------------------------------------
# Which classes are in the image: the semantic encoding loss of EncNet, the category loss of SANet.


def find_present_classes(target: Tensor, num_classes: int) -> Tensor:
    """1 where a class has at least one pixel of the image; 255 is no class.   b h w   ->   b k, bool"""
    labels = torch.where(target == IGNORE, num_classes, target).flatten(1)
    found = torch.zeros(len(target), num_classes + 1, dtype=torch.bool, device=target.device)
    return found.scatter(1, labels, True)[:, :num_classes]


def find_labelled_images(target: Tensor) -> Tensor:
    """b h w   ->   b, whether an image has any label"""
    return (target != IGNORE).flatten(1).any(1)


def presence_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy, the mean over classes and over the images of all processes.   logits: b k   target: b h w

    An image without a single labelled pixel says nothing about what it shows, and counts nowhere. (The authors of
    EncNet take it for an image without any class.) Where there are no other images the loss is zero, not NaN.
    """
    check_shapes("presence", logits=(logits, "b k"), target=(target, "b h w"))
    k = logits.shape[1]
    labelled = find_labelled_images(target)
    wide = widen(logits)
    loss = F.binary_cross_entropy_with_logits(
        wide, find_present_classes(target, k).to(wide.dtype), reduction="none"
    ).mean(1)
    return global_mean((loss * labelled).sum(), labelled.sum())


# ----------------------------------------------------------------------------------------------------------------------
# Where one class ends and another begins, and the focal loss for so rare a thing: the border network of DFN.


def find_borders(target: Tensor, *, radius: int = 3) -> Tensor:
    """1 on the border between classes, 0 off it, 255 where that cannot be known.   b h w   ->   b h w, as target

    A pixel is on the border if the labelled pixels in the square of 2 `radius` + 1 around it hold two classes or more.
    That goes for unlabelled pixels too: VOC hides its borders under a band of them. An unlabelled pixel that sees
    fewer than two classes is 255, as is the padding of a crop, whose edge is no border.

    The authors of DFN paint unlabelled pixels as class 0, run an edge detector over the labels and widen its lines to 7
    pixels. A radius of 3 is as wide; made from the labels of the crop, it needs no file and no other library.
    """
    check_shapes("borders", target=(target, "b h w"))
    check_count("borders", "radius", radius, least=1)
    labels, unknown = target.float(), target == IGNORE
    window = 2 * radius + 1
    high = F.max_pool2d(labels.masked_fill(unknown, -1)[:, None], window, stride=1, padding=radius)
    low = -F.max_pool2d(-labels.masked_fill(unknown, IGNORE)[:, None], window, stride=1, padding=radius)
    border = (high > low)[:, 0]  # nowhere a label: -1 against 255, which is no border
    return torch.where(unknown & ~border, IGNORE, border.to(target.dtype))


def focal_loss(logits: Tensor, target: Tensor, *, gamma: float = 2.0, alpha: float = 0.25) -> Tensor:
    """Mean over the pixels of all processes that are 0 or 1.   logits: b 1 h w   target: b H W, 0, 1, or 255 for none

        p = sigmoid(logits);   -alpha (1 - p)^gamma log(p) where target is 1,   -(1 - alpha) p^gamma log(1 - p) where 0

    Logits are resized to the target by `to_pixels`. Without any pixel the loss is zero, not NaN.
    """
    check_positive("focal", "gamma", gamma, zero=True)
    check_positive("focal", "alpha", alpha, zero=True, most=1)
    height, width = target.shape[-2:]
    wide = resize_logits(logits, (height, width))[:, 0]
    check_shapes("focal", logits=(wide, "b h w"), target=(target, "b h w"))
    known, positive = target != IGNORE, target == 1
    # the logit of the true answer: both cases are then one, and no logarithm meets a zero
    true = torch.where(positive, wide, -wide)
    loss = -(torch.sigmoid(-true) ** gamma) * F.logsigmoid(true)
    loss = torch.where(positive, alpha * loss, (1 - alpha) * loss)
    return global_mean((loss * known).sum(), known.sum())
