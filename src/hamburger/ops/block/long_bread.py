"""The host's side of the bread of many columns: when it is taken, and its launch."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops.start import start
from hamburger.ops.stream import asynchronous
from hamburger.ops.tiles import cdiv, power_of_two
from hamburger.ops.wave import HOPPER, STATIC, Card, card, gluon

BM, BN, PLACES = 128, 64, 3  # as in the kernel
MOST = 512  # channels of x: a program's rows of W are half of its registers then
# Tiles for each program: W's way into registers takes as long as four of them. With 8, at c = d = 512 and n = 16,384 on
# an H200, the other kernel is faster, with 32 this one; in between both times follow the tiles.
LEAST = 12


def grid_of(x: Tensor, weight: Tensor, more: Tensor | None, z: Tensor) -> tuple[int, int] | None:
    """Which programs make z = W x (+ more) in bfloat16; None where the other kernel does.

    x: b c n   weight: d c   more, z: b d n
    """
    moved = (x, z) if more is None else (x, more, z)
    if not x.is_cuda or not gluon() or any(t.dtype != torch.bfloat16 for t in (weight, *moved)):
        return None
    if not all(map(asynchronous, moved)):
        return None
    b, c, n = x.shape
    return cut(b, c, n, len(weight), card(x.get_device()))


def cut(b: int, c: int, n: int, d: int, card: Card) -> tuple[int, int] | None:
    """Tiles of d, and programs for each, about one for a multiprocessor in all; None where each had few tiles."""
    rows = cdiv(d, BM)
    each = card.processors // rows
    narrow = min(c, d) <= BM // 2  # most of a tile would be zeros
    if card.capability != HOPPER or narrow or c > MOST or shared_bytes(padded(c)) + STATIC > card.shared:
        return None
    return (rows, each) if 0 < LEAST * each <= b * cdiv(n, BN) else None


def padded(c: int) -> int:
    return max(128, power_of_two(c))


def shared_bytes(K: int) -> int:
    """Tiles of X, and two of Z."""
    return 2 * BN * (PLACES * K + 2 * BM)


def launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    more: Tensor | None,
    z: Tensor,
    grid: tuple[int, int],
    *,
    rectify: bool,
) -> None:
    """W x (+ bias) (+ more) into z, which may be `more`, then a ReLU. All as in `grid_of`."""
    from hamburger.ops.block.long_bread_kernels import long_bread_kernel

    (b, c, n), d = x.shape, len(weight)
    added = z if more is None else more
    start(
        long_bread_kernel, grid,
        x, weight, weight if bias is None else bias, added, z, b, d, n, grid[1],
        *x.stride(), *weight.stride(), *added.stride(), *z.stride(),
        BIAS=bias is not None, MORE=more is not None, RECTIFY=rectify, C_FAST=weight.stride(1) == 1,
        C=c, K=padded(c), num_warps=8,
    )  # fmt: skip
