"""Twice and half the size, in the dtype and the memory layout of the map.

torch's `interpolate` goes to float32 under autocast, and takes all that is added to its result with it; and on a card
the way back through `avg_pool2d` takes longer than the convolution before it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def double(x: Tensor) -> Tensor:
    """Every pixel four times.   b c h w   ->   b c 2h 2w"""
    b, c, h, w = x.shape
    if channels_last(x):
        x = x.permute(0, 2, 3, 1)[:, :, None, :, None, :].expand(b, h, 2, w, 2, c)
        return x.reshape(b, 2 * h, 2 * w, c).permute(0, 3, 1, 2)
    return x[:, :, :, None, :, None].expand(b, c, h, 2, w, 2).reshape(b, c, 2 * h, 2 * w)


def halve(x: Tensor) -> Tensor:
    """The mean of 2 x 2 pixels, of which there are even numbers.   b c h w   ->   b c h/2 w/2"""
    b, c, h, w = x.shape
    if channels_last(x):
        return x.permute(0, 2, 3, 1).reshape(b, h // 2, 2, w // 2, 2, c).mean((2, 4)).permute(0, 3, 1, 2)
    return x.reshape(b, c, h // 2, 2, w // 2, 2).mean((3, 5))


def channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
