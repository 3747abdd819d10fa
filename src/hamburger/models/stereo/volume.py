"""Left features against right features at every disparity: the cost volume, and the disparity that is read from it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.precision import widen


def shifted(right: Tensor, disparities: int) -> Tensor:
    """Right features as each left position meets them, zeros beyond the frame.   b c h w   ->   b c d h w, a view

    Entry d at x is the feature at x - d. Windows over the padded rows hold them in the opposite order, so the largest
    disparity comes first: what is made of them is turned round once it is small.
    """
    w = right.shape[-1]
    return F.pad(right, (disparities - 1, 0)).unfold(3, w, 1).movedim(3, 2)


def correlation(left: Tensor, right: Tensor, *, disparities: int, groups: int) -> Tensor:
    """Mean products of left and right features, group by group.   b c h w, b c h w   ->   b groups d h w"""
    products = left.unsqueeze(2) * shifted(right, disparities)
    return products.unflatten(1, (groups, -1)).mean(2).flip(2)


def concatenation(left: Tensor, right: Tensor, *, disparities: int) -> Tensor:
    """Both features side by side; left ones too are zero where nothing is met.   b c h w, b c h w   ->   b 2c d h w"""
    met = torch.arange(disparities, device=left.device)[:, None] <= torch.arange(left.shape[-1], device=left.device)
    lefts = left.unsqueeze(2) * met.to(left.dtype)[:, None]
    return torch.cat([lefts, shifted(right, disparities).flip(2)], dim=1)


def soft_argmin(costs: Tensor) -> Tensor:
    """The mean disparity under softmax(-costs), in steps of the volume.   b d h w   ->   b h w, at least float32"""
    weights = (-widen(costs)).softmax(1)
    steps = torch.arange(weights.shape[1], device=weights.device, dtype=weights.dtype)
    return (weights * steps[:, None, None]).sum(1)


def upsampled(disparity: Tensor, scores: Tensor, factor: int) -> Tensor:
    """Each fine pixel a weighted mean of the 3 x 3 coarse ones around it: edges need not blur.

    disparity: b h w    scores: b 9 * factor^2 h w, before their softmax over the nine    ->    b factor*h factor*w
    """
    around = F.unfold(F.pad(disparity.unsqueeze(1), (1, 1, 1, 1), mode="replicate"), 3)
    around = around.unflatten(2, disparity.shape[1:]).unsqueeze(2)  # b 9 1 h w
    weights = widen(scores).unflatten(1, (9, factor * factor)).softmax(1)
    return F.pixel_shuffle((weights * around).sum(1), factor).squeeze(1)
