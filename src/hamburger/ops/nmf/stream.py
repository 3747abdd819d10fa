"""NMF in one pass over X per sweep, whatever n is: the same values as reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops.nmf.wave import columns
from hamburger.ops.start import start
from hamburger.ops.stream import Stream, asynchronous


def shared_bytes(D: int, R: int, BN: int) -> int:
    """A tile of X, D, the codes and D^T D in bfloat16, and what a softmax needs."""
    return 2 * (D * BN + D * R + BN * R + R * R) + 2048


def tile_columns(R: int) -> int:
    """Of X: as many as leave registers for the sums."""
    return 8192 // R


def solve(
    x: Tensor, bases: Tensor, cut: Stream, steps: int, eps: float, *, keep: bool, product: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `fused.factors`"""
    from hamburger.ops.nmf.stream_kernels import stream_kernel, update_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    COLS = columns(cut.programs)
    codes = torch.empty(b, n, r, dtype=torch.float32, device=x.device)
    last = codes if dtype == codes.dtype else torch.empty_like(codes, dtype=dtype)
    y = torch.empty_like(x) if product else None
    ratio = torch.empty_like(codes, dtype=x.dtype) if keep else None
    out = x if y is None else y
    if steps:
        sums = torch.empty(b, cut.programs, cut.D + cut.R, cut.R, dtype=x.dtype, device=x.device)
        copy = torch.empty(b, cut.D, cut.R, dtype=x.dtype, device=x.device)
    else:
        sums = copy = x
    for step in range(steps + 1):
        done = step == steps
        start(
            stream_kernel, (cut.programs, b),
            x, bases if step == 0 else copy, codes, last if done else codes, x if ratio is None else ratio, out, sums,
            d, n, r, cut.programs, eps, *x.stride(), *out.stride(),
            D=cut.D, R=cut.R, BN=cut.BN, COLS=COLS, N_FAST=x.stride(2) == 1, ASYNC=asynchronous(x),
            FIRST=step == 0, READOUT=done, RATIO=done and keep, Y=done and product, num_warps=8,
        )  # fmt: skip
        if not done:
            new = torch.empty_like(bases)  # not in place: other programs still read the old rows
            start(
                update_kernel, (cut.D // 64 * (cut.R // COLS), b),
                bases, new, copy, sums, d, r, cut.programs, eps, D=cut.D, R=cut.R, COLS=COLS, num_warps=8,
            )  # fmt: skip
            bases = new
    return bases if steps else bases.clone(), last, y, ratio
