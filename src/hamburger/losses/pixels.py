"""From the positions of a feature map to pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.layers.context.grid import grid_resize
from hamburger.precision import full_precision, widen

IGNORE = 255


def to_pixels(logits: Tensor, size: tuple[int, int]) -> Tensor:
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
