"""The host's side of batch norm in training: `norm_kernels`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.block import Batch, Norm, norm_kernels
from hamburger.ops.block.launches import Taken
from hamburger.ops.start import start
from hamburger.ops.tiles import PROGRAMS, blocks, cdiv, split

# Of a tile of channels: each adds up all partial sums of its rows, so there should be many; a multiple of the 16 that
# the matrix units take.
CHANNELS = 16

ROWS = 64  # channels of a program that sums over positions and waits for memory: small, for several at a time

# At most about so many parts of the positions are the codes' moments summed in: they are few numbers.
MOMENTS = 64


class Statistics(NamedTuple):
    """Of u = E C over samples and positions, and of the codes: C C^T and C 1 of each sample."""

    mean: Tensor  # c
    var: Tensor  # c, biased
    total: Tensor  # b (r + 1) r


def statistics(fold: Tensor, codes: Tensor, batch: Batch, dtype: torch.dtype) -> Statistics:
    """Mean and variance of E C; the running ones move.   fold: b c r   codes: b n r"""
    (b, c, r), n = fold.shape, codes.shape[1]
    side = _side(r)
    tiles = cdiv(r, side)
    length, parts = split(n, cdiv(PROGRAMS, MOMENTS), 64)
    sums = codes.new_empty(b, parts, r + 1, r, dtype=torch.float32)
    start(
        norm_kernels.moments_kernel, (b * parts, tiles, tiles),
        codes, sums, n, r, length, KIND=launch.kind(dtype), SR=side, SN=64, num_warps=4,
    )  # fmt: skip
    total = launch.total(sums)
    mean, var = sums.new_empty(c), sums.new_empty(c)
    norm = batch.norm
    start(
        norm_kernels.statistics_kernel, (cdiv(c, CHANNELS),),
        total, fold, mean, var, norm.mean, norm.var, batch.tracked, b, c, n, r, batch.momentum,
        FINE=_fine(dtype), M=CHANNELS, SR=side, num_warps=4,
    )  # fmt: skip
    return Statistics(mean, var, total)


class NormBack(NamedTuple):
    """What comes back through ReLU, skip and norm. `ds` is the cotangent of the sum with the skip."""

    ds: Tensor  # b c n
    scaled: Tensor  # E': b c r
    dfold: Tensor  # dE: b c r, float32
    taken: Taken
    dgamma: Tensor  # c
    dbeta: Tensor  # c


def back(
    dy: Tensor, y: Tensor | None, fold: Tensor, codes: Tensor, found: Statistics, norm: Norm, dtype: torch.dtype
) -> NormBack:
    """dy: b c n   y: b c n, where a ReLU follows   fold: b c r   codes: b n r"""
    (b, c, n), r = dy.shape, fold.shape[2]
    t = blocks(c, n, r, dtype)
    tiles = cdiv(c, ROWS), cdiv(r, t.SR)
    length, parts = split(n, b * tiles[0] * tiles[1], t.SN)
    ds = dy if y is None else torch.empty_like(y)
    sums = dy.new_empty(b, parts, c * (r + 1), dtype=torch.float32)
    mask = dy if y is None else y
    start(
        norm_kernels.cut_kernel, (b * parts, *tiles),
        dy, mask, codes, ds, sums, c, n, r, length, *dy.stride(), *mask.stride(), *ds.stride(),
        RECTIFY=y is not None, KIND=launch.kind(dtype), SD=ROWS, SR=t.SR, SN=t.SN, num_warps=4,
    )  # fmt: skip
    rows = cdiv(c, CHANNELS)
    assert norm.weight is not None
    scaled, dfold = torch.empty_like(fold), torch.empty_like(fold, dtype=torch.float32)
    mix = sums.new_empty(b, rows, r + 1, r)
    dgamma, dbeta = torch.empty_like(norm.weight), torch.empty_like(norm.weight)
    start(
        norm_kernels.norm_back_kernel, (rows,),
        launch.total(sums), found.total, fold, found.mean, found.var, norm.weight, scaled, dfold, mix, dgamma, dbeta,
        b, c, n, r, norm.eps, FINE=_fine(dtype), M=CHANNELS, SR=_side(r), num_warps=4,
    )  # fmt: skip
    return NormBack(ds, scaled, dfold, Taken(codes, launch.total(mix)), dgamma, dbeta)


def outer(dfold: Tensor, bases: Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over samples of dE D^T.   dfold: b c r   bases: b d r   ->   c d, as `like`"""
    (b, c, r), d = dfold.shape, bases.shape[1]
    out = torch.empty_like(like, memory_format=torch.contiguous_format)
    start(
        norm_kernels.outer_kernel, (cdiv(c, 64), cdiv(d, 64)),
        dfold, bases, out, b, c, d, r, KIND=launch.kind_of_factors(dtype), M=64, N=64, K=32, num_warps=4,
    )  # fmt: skip
    return out


def _side(r: int) -> int:
    return 16 if r <= 16 else 32 if r <= 32 else 64


def _fine(dtype: torch.dtype) -> str:
    """Sums over codes keep the digits of a float32, for means are taken off. A bfloat16 E is exact on the left."""
    if dtype == torch.bfloat16:
        return "tf32x2"
    return "ieee" if launch.kind(dtype) == "ieee" else "tf32x3"
