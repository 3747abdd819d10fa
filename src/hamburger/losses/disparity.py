"""Smooth L1 of disparities, averaged as one process with the joined batch would average it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from hamburger.losses.mean import joined_mean
from hamburger.precision import widen


def known(target: Tensor, most: float) -> Tensor:
    """Pixels that can be trained on: with a known disparity, which the network can reach.   b h w   ->   b h w, bool"""
    return (target > 0) & (target < most)


def smooth_l1(disparity: Tensor, target: Tensor, *, most: float) -> Tensor:
    """Mean over the known pixels of all processes.   disparity: b h w    target: b h w, 0 where unknown

    Square below one pixel, straight above. A batch without a known pixel gives zero rather than NaN.
    """
    counted = known(target, most)
    each = F.smooth_l1_loss(widen(disparity), target, reduction="none")
    return joined_mean((each * counted).sum(), counted.sum())
