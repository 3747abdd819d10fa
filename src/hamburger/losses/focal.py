"""Where one class ends and another begins, and the focal loss for so rare a thing: the border network of DFN."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import check_count, check_positive
from hamburger.losses.mean import joined_mean
from hamburger.losses.pixels import IGNORE, to_pixels
from hamburger.shapes import check_shapes


def borders(target: Tensor, *, radius: int = 3) -> Tensor:
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


def focal(logits: Tensor, target: Tensor, *, gamma: float = 2.0, alpha: float = 0.25) -> Tensor:
    """Mean over the pixels of all processes that are 0 or 1.   logits: b 1 h w   target: b H W, 0, 1, or 255 for none

        p = sigmoid(logits);   -alpha (1 - p)^gamma log(p) where target is 1,   -(1 - alpha) p^gamma log(1 - p) where 0

    Logits are resized to the target by `to_pixels`. Without any pixel the loss is zero, not NaN.
    """
    check_positive("focal", "gamma", gamma, zero=True)
    check_positive("focal", "alpha", alpha, zero=True, most=1)
    height, width = target.shape[-2:]
    wide = to_pixels(logits, (height, width))[:, 0]
    check_shapes("focal", logits=(wide, "b h w"), target=(target, "b h w"))
    known, positive = target != IGNORE, target == 1
    # the logit of the true answer: both cases are then one, and no logarithm meets a zero
    true = torch.where(positive, wide, -wide)
    loss = -(torch.sigmoid(-true) ** gamma) * F.logsigmoid(true)
    loss = torch.where(positive, alpha * loss, (1 - alpha) * loss)
    return joined_mean((loss * known).sum(), known.sum())
