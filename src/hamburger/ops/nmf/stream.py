"""NMF in one launch, whatever n is, with one pass over X per sweep: the same values as reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.nmf.wave import columns
from hamburger.ops.start import start
from hamburger.ops.stream import BN, Stream, asynchronous


def shared_bytes(D: int, R: int) -> int:
    """Two tiles of X, D, codes before and after and D^T D in bfloat16, and what sums and changes of layout need."""
    return 2 * (2 * D * BN + D * R + 2 * BN * R + R * R) + 8192


def solve(
    x: Tensor,
    bases: Tensor,
    cut: Stream,
    steps: int,
    eps: float,
    *,
    keep: bool,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `fused.factors`   (counts: see `wave.solve`)"""
    from hamburger.ops.nmf.stream_kernels import stream_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    found = torch.empty_like(bases)
    last = torch.empty(b, n, r, dtype=dtype, device=x.device)
    codes = last if dtype == torch.float32 or not steps else torch.empty_like(last, dtype=torch.float32)
    y = torch.empty_like(x) if product else None
    ratio = torch.empty_like(last, dtype=x.dtype) if keep else None
    copy = torch.empty(b, cut.D, cut.R, dtype=x.dtype, device=x.device)
    sums = torch.empty(b, cut.programs, cut.D + cut.R, cut.R, dtype=x.dtype, device=x.device) if steps else copy
    if counts is None:
        counts = launch.counters(b, x.device)
    out = x if y is None else y
    for first in range(0, b, cut.images):
        start(
            stream_kernel, (cut.programs, min(cut.images, b - first)),
            x, bases, found, copy, codes, last, x if ratio is None else ratio, out, sums, counts,
            first, d, n, r, steps, cut.programs, eps, *x.stride(), *out.stride(), counts.stride(0),
            D=cut.D, R=cut.R, BN=BN, COLS=columns(cut.programs), N_FAST=x.stride(2) == 1, ASYNC=asynchronous(x),
            SWEEPS=steps > 0, RATIO=keep, Y=product, num_warps=8, launch_cooperative_grid=True,
        )  # fmt: skip
    if not steps:
        found.copy_(bases)
    return found, last, y, ratio
