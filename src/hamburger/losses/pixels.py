"""From the positions of a feature map to pixels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from hamburger.precision import widen

IGNORE = 255


def to_pixels(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, corners aligned, as the original networks have it.   b k h w   ->   b k H W, at least float32

    Widened first: a gradient that comes back is the sum over some thousand pixels, which half precision cannot hold.
    """
    wide = widen(logits)
    if tuple(wide.shape[-2:]) == tuple(size):
        return wide
    return F.interpolate(wide, size=size, mode="bilinear", align_corners=True)
