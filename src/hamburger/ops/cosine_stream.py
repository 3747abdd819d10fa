"""Soft k-means by cosine in one launch, whatever n is, with one pass over X per sweep, as VQ and CD share it."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.start import start
from hamburger.ops.stream import BN, Stream, asynchronous


def shared_bytes(D: int, R: int) -> int:
    """A tile of X, D and the codes in two halves each, a stage of Y, and what sums need."""
    return 2 * (D * BN + 2 * D * R + 2 * BN * R + 64 * BN) + 4096


def solve(
    x: Tensor,
    bases: Tensor,
    cut: Stream,
    steps: int,
    temperature: float,
    *,
    codes: Tensor | None,
    y: Tensor | None,
    unit: bool,
    counts: Tensor | None = None,
) -> Tensor:
    """K sweeps; where there are codes the read-out, and where there is a y also D C.   ->   bases: b d r

    unit: whether the bases of a sweep are brought to unit length, as CD does (but for the last, which come as they are)
    counts: see `cosine_wave.memory`
    """
    from hamburger.ops.cosine_stream_kernels import cosine_stream_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    found = torch.empty_like(bases)
    scale = torch.empty(b, n, dtype=torch.float32, device=x.device)
    sums = scale
    if steps:
        sums = torch.empty(b, cut.programs, cut.D + 1, cut.R, dtype=torch.float32, device=x.device)
    if counts is None:
        counts = launch.counters(b, x.device)
    out = x if y is None else y
    for first in range(0, b, cut.images):
        start(
            cosine_stream_kernel, (cut.programs, min(cut.images, b - first)),
            x, bases, found, scale, scale if codes is None else codes, out, sums, counts,
            first, d, n, r, steps, cut.programs, temperature, *x.stride(), *out.stride(), counts.stride(0),
            D=cut.D, R=cut.R, BN=BN, N_FAST=x.stride(2) == 1, ASYNC=asynchronous(x),
            SWEEPS=steps > 0, CENTROIDS=unit, READOUT=codes is not None, Y=y is not None,
            num_warps=8, launch_cooperative_grid=True,
        )  # fmt: skip
    if not steps:
        found.copy_(bases)
    return found
