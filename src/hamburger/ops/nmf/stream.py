"""NMF in one pass over X per sweep, whatever n is: the same values as reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops.launch import FEW, total
from hamburger.ops.nmf.bases import update
from hamburger.ops.start import start
from hamburger.ops.stream import BN, Stream, asynchronous
from hamburger.ops.tiles import blocks


def shared_bytes(D: int, R: int) -> int:
    """Two tiles of X, D, codes before and after and D^T D in bfloat16, and what a softmax needs."""
    return 2 * (2 * D * BN + D * R + 2 * BN * R + R * R) + 2048


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
