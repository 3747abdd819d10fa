"""Pairs at half, a third, ... of their size, for networks whose disparities do not reach far enough at full size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.data.stereo.base import UNKNOWN, StereoSample

ALIKE = 1.0  # pixels, at full size: disparities of one block that differ by more lie on both sides of an edge


def shrunk(sample: StereoSample, factor: int) -> StereoSample:
    """Blocks of factor x factor pixels become one: colours by their mean, disparities by the mean over `factor`.

    A block with an unknown disparity, or with an edge in it, is unknown; one that the other camera does not see whole
    is not seen. Rows and columns that fill no block are left out.
    """
    if factor == 1:
        return sample
    blocks = _blocks(sample.disparity, factor)
    low, high = blocks.amin(-1), blocks.amax(-1)
    whole = (low != UNKNOWN) & (high - low <= ALIKE)
    disparity = torch.where(whole, blocks.mean(-1) / factor, UNKNOWN)
    seen = None if sample.seen is None else _blocks(sample.seen, factor).all(-1)
    return StereoSample(_mean(sample.left, factor), _mean(sample.right, factor), disparity, seen)


def _blocks(values: Tensor, factor: int) -> Tensor:
    """h w   ->   h/factor w/factor factor^2"""
    return values.unfold(0, factor, factor).unfold(1, factor, factor).flatten(2)


def _mean(image: Tensor, factor: int) -> Tensor:
    return F.avg_pool2d(image.float(), factor).round().to(torch.uint8)
