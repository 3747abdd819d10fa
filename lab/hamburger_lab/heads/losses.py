"""Losses of single heads: class presence, class borders. Pixels labelled 255 are ignored; means are global."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.distributed import global_mean
from hamburger.errors import check_count, check_positive
from hamburger.segmentation.losses import IGNORE, resize_logits
from hamburger.tensors import check_shapes, widen

# -- class presence: the semantic encoding loss of EncNet, the category loss of SANet ---------------------------------


def find_present_classes(target: Tensor, num_classes: int) -> Tensor:
    """Return which classes have at least one pixel in each image; 255 is not a class.   b h w   ->   b k, bool"""
    labels = torch.where(target == IGNORE, num_classes, target).flatten(1)
    present = torch.zeros(len(target), num_classes + 1, dtype=torch.bool, device=target.device)
    return present.scatter(1, labels, True)[:, :num_classes]


def find_labelled_images(target: Tensor) -> Tensor:
    """Return which images have a labelled pixel.   b h w   ->   b, bool"""
    return (target != IGNORE).flatten(1).any(1)


def presence_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross-entropy, averaged over classes and images of all processes.   logits: b k   target: b h w

    Images without a labelled pixel are left out; EncNet's authors treat them as images without any class. If no image
    is left the loss is zero, not NaN.
    """
    check_shapes("presence_loss", logits=(logits, "b k"), target=(target, "b h w"))
    k = logits.shape[1]
    labelled = find_labelled_images(target)
    wide = widen(logits)
    loss = F.binary_cross_entropy_with_logits(
        wide, find_present_classes(target, k).to(wide.dtype), reduction="none"
    ).mean(1)
    return global_mean((loss * labelled).sum(), labelled.sum())


# -- class borders and focal loss: the border network of DFN -----------------------------------------------------------


def find_borders(target: Tensor, *, radius: int = 3) -> Tensor:
    """Return 1 on the border between classes, 0 elsewhere, 255 where unknown.   b h w   ->   b h w, dtype of target

    A pixel is on the border if the labelled pixels in the square of side 2 `radius` + 1 around it have at least two
    classes. This includes unlabelled pixels: VOC covers its borders with a band of them. Other unlabelled pixels are
    255, and so is the padding of a crop, whose edge is not a border.

    The authors of DFN set unlabelled pixels to class 0, run an edge detector over the labels and dilate the lines to 7
    pixels. A radius of 3 gives the same width, and needs neither extra files nor another library.
    """
    check_shapes("find_borders", target=(target, "b h w"))
    check_count("find_borders", "radius", radius, least=1)
    labels, unknown = target.float(), target == IGNORE
    window = 2 * radius + 1
    high = F.max_pool2d(labels.masked_fill(unknown, -1)[:, None], window, stride=1, padding=radius)
    low = -F.max_pool2d(-labels.masked_fill(unknown, IGNORE)[:, None], window, stride=1, padding=radius)
    border = (high > low)[:, 0]  # without any label: -1 against 255, not a border
    return torch.where(unknown & ~border, IGNORE, border.to(target.dtype))


def focal_loss(logits: Tensor, target: Tensor, *, gamma: float = 2.0, alpha: float = 0.25) -> Tensor:
    """Return the mean focal loss over the pixels with target 0 or 1.   logits: b 1 h w   target: b H W; 255: ignored

        p = sigmoid(logits);   -alpha (1 - p)^gamma log(p) where target is 1,   -(1 - alpha) p^gamma log(1 - p) where 0

    Logits are resized to the target. The mean is over all processes; without any pixel it is zero, not NaN.
    """
    check_positive("focal_loss", "gamma", gamma, zero=True)
    check_positive("focal_loss", "alpha", alpha, zero=True, most=1)
    height, width = target.shape[-2:]
    wide = resize_logits(logits, (height, width))[:, 0]
    check_shapes("focal_loss", logits=(wide, "b h w"), target=(target, "b h w"))
    known, positive = target != IGNORE, target == 1
    # the logit of the true label covers both cases and avoids the logarithm of zero
    true_logit = torch.where(positive, wide, -wide)
    loss = -(torch.sigmoid(-true_logit) ** gamma) * F.logsigmoid(true_logit)
    loss = torch.where(positive, alpha * loss, (1 - alpha) * loss)
    return global_mean((loss * known).sum(), known.sum())
