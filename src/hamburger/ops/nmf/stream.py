"""NMF in one pass over X per sweep, whatever n is: the same values as reference.py."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.ops.launch import FEW, total
from hamburger.ops.nmf.bases import update
from hamburger.ops.start import start
from hamburger.ops.tiles import PROGRAMS, blocks, cdiv, power_of_two
from hamburger.ops.wave import HOPPER, RANKS, STATIC, Card, card, gluon

BN = 64  # columns of a tile: more would leave no registers beside the sums
MOST_IMAGES = 65_535  # rows of a grid


class Stream(NamedTuple):
    """How a solve is cut: `programs` for each image; d and r padded to D and R."""

    D: int
    R: int
    programs: int


def shared_bytes(D: int, R: int) -> int:
    """Two tiles of X, D, codes before and after and D^T D in bfloat16, and what a softmax needs."""
    return 2 * (2 * D * BN + D * R + 2 * BN * R + R * R) + 2048


def stream_of(x: Tensor, r: int) -> Stream | None:
    """x: b d n   ->   how to solve it with one pass per sweep, or None where the card is of another kind."""
    if x.dtype != torch.bfloat16 or not x.is_cuda or not gluon():
        return None
    b, d, n = x.shape
    return cut(b, d, n, r, card(x.get_device()))


def cut(b: int, d: int, n: int, r: int, card: Card) -> Stream | None:
    if card.capability != HOPPER or r > RANKS[-1] or d > 512 or b > MOST_IMAGES:
        return None
    D, R = max(128, power_of_two(d)), max(RANKS[0], power_of_two(r))
    if shared_bytes(D, R) + STATIC > card.shared:
        return None
    # one program on a multiprocessor of a large card; a constant, for their number decides the last bits
    return Stream(D, R, max(1, min(PROGRAMS // 2 // b, cdiv(n, BN))))


def asynchronous(x: Tensor) -> bool:
    """Whether rows of x can be copied 16 bytes at a time, and Triton sees it: it asks for multiples of 16."""
    near = x.stride(2) == 1 and x.data_ptr() % 16 == 0
    return near and not any(size % 16 for size in (x.shape[2], x.stride(1), x.stride(0)))


def solve(
    x: Tensor, bases: Tensor, cut: Stream, steps: int, eps: float, *, keep: bool, product: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `fused.factors`"""
    from hamburger.ops.nmf.stream_kernels import stream_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    t = blocks(d, n, r, x.dtype)
    codes = torch.empty(b, n, r, dtype=torch.float32, device=x.device)
    last = codes if dtype == codes.dtype else torch.empty_like(codes, dtype=dtype)
    y = torch.empty_like(x) if product else None
    ratio = torch.empty_like(codes, dtype=x.dtype) if keep else None
    out = x if y is None else y
    sums = torch.empty(b, cut.programs, d + r, r, dtype=torch.float32, device=x.device) if steps else codes
    for step in range(steps + 1):
        done = step == steps
        start(
            stream_kernel, (cut.programs, b),
            x, bases, codes, last if done else codes, x if ratio is None else ratio, out, sums,
            d, n, r, cut.programs, eps, *x.stride(), *out.stride(),
            D=cut.D, R=cut.R, BN=BN, N_FAST=x.stride(2) == 1, ASYNC=asynchronous(x),
            FIRST=step == 0, READOUT=done, RATIO=done and keep, Y=done and product, num_warps=8,
        )  # fmt: skip
        if not done:
            bases = update(bases, sums if cut.programs <= FEW else total(sums)[:, None], x.dtype, t, eps)
    return bases if steps else bases.clone(), last, y, ratio
