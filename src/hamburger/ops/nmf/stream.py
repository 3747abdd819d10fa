"""NMF with one pass over X per sweep, all sweeps in one launch, whatever n is: the same values as reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.nmf.wave import columns
from hamburger.ops.start import start
from hamburger.ops.stream import BN, Stream, asynchronous

PLACES = 2  # for tiles of X, where they are copied in the background


def shared_bytes(D: int, R: int) -> int:
    """X, D, codes and D^T D in bfloat16, and what sums and changes of layout need."""
    return 2 * (PLACES * D * BN + D * R + BN * R + R * R) + 8192


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
    (b, _, n), r = x.shape, bases.shape[2]
    found = torch.empty_like(bases) if steps else bases.clone()
    last = torch.empty(b, n, r, dtype=dtype, device=x.device)
    y = torch.empty_like(x) if product else None
    ratio = torch.empty_like(last, dtype=x.dtype) if keep else None
    codes = last
    if steps:
        if dtype != torch.float32:
            codes = torch.empty_like(last, dtype=torch.float32)
        copy = torch.empty(b, cut.D, cut.R, dtype=x.dtype, device=x.device)
        sums = torch.empty(b, cut.programs, cut.D + cut.R, cut.R, dtype=x.dtype, device=x.device)
        if counts is None:
            counts = launch.counters(b, x.device)
        for first in range(0, b, cut.images):
            images = min(cut.images, b - first)
            _launch(
                x, bases, found, copy, codes, codes, x, x, sums, counts, cut, first, images, steps, eps,
                FIRST=True, READOUT=False, RATIO=False, Y=False, launch_cooperative_grid=True,
            )  # fmt: skip
    out = x if y is None else y
    # what a read-out does not look at (copy, sums, counts) is any memory
    _launch(
        x, found, found, x, codes, last, x if ratio is None else ratio, out, x, codes, cut, 0, b, steps, eps,
        FIRST=not steps, READOUT=True, RATIO=keep, Y=product,
    )  # fmt: skip
    return found, last, y, ratio


def _launch(
    x: Tensor, bases: Tensor, found: Tensor, copy: Tensor, codes: Tensor, last: Tensor, ratio: Tensor, y: Tensor,
    sums: Tensor, counts: Tensor, cut: Stream, first: int, images: int, steps: int, eps: float, **flags: bool,
) -> None:  # fmt: skip
    from hamburger.ops.nmf.stream_kernels import stream_kernel

    (_, d, n), r, ahead = x.shape, bases.shape[2], asynchronous(x)
    start(
        stream_kernel, (cut.programs, images),
        x, bases, found, copy, codes, last, ratio, y, sums, counts,
        first, d, n, r, steps, cut.programs, eps, *x.stride(), *y.stride(), counts.stride(0),
        D=cut.D, R=cut.R, BN=BN, PLACES=PLACES if ahead else 1, COLS=columns(cut.programs),
        N_FAST=x.stride(2) == 1, ASYNC=ahead, num_warps=8, **flags,
    )  # fmt: skip
