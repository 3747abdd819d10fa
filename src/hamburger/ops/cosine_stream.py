"""Soft k-means by cosine with one pass over X per sweep, all sweeps in one launch: what VQ and CD share of it."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.start import start
from hamburger.ops.stream import BN, Stream, asynchronous


def shared_bytes(D: int, R: int) -> int:
    """A tile of X, D and the codes in two halves each; or one of the codes and two stages of Y. And what sums need."""
    return 2 * (D * BN + 2 * D * R + max(2 * BN * R, BN * R + 2 * 64 * BN)) + 4096


def sweeps(
    x: Tensor,
    bases: Tensor,
    cut: Stream,
    steps: int,
    temperature: float,
    *,
    unit: bool,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `cosine_fused.sweeps`, but for the codes, which nobody writes.   ->   bases: b d r,  1 / |x|: b n

    counts: see `cosine_wave.memory`
    """
    b, _, n = x.shape
    scale = torch.empty(b, n, dtype=torch.float32, device=x.device)
    if not steps:
        return bases.clone(), scale
    found = torch.empty_like(bases)
    sums = torch.empty(b, cut.programs, cut.D + 1, cut.R, dtype=torch.float32, device=x.device)
    if counts is None:
        counts = launch.counters(b, x.device)
    for first in range(0, b, cut.images):
        images = min(cut.images, b - first)
        _launch(
            x, bases, found, scale, scale, x, sums, counts, cut, first, images, steps, temperature,
            FIRST=True, CENTROIDS=unit, READOUT=False, Y=False, launch_cooperative_grid=True,
        )  # fmt: skip
    return found, scale


def read_out(
    x: Tensor, bases: Tensor, scale: Tensor, codes: Tensor, y: Tensor | None, cut: Stream, temperature: float,
    *, first: bool,
) -> None:  # fmt: skip
    """Write the codes, and where there is a y also D C."""
    # what a read-out does not look at (found, sums, counts) is any memory
    _launch(
        x, bases, bases, scale, codes, x if y is None else y, scale, scale, cut, 0, x.shape[0], 0, temperature,
        FIRST=first, CENTROIDS=False, READOUT=True, Y=y is not None,
    )  # fmt: skip


def _launch(
    x: Tensor, bases: Tensor, found: Tensor, scale: Tensor, codes: Tensor, y: Tensor, sums: Tensor, counts: Tensor,
    cut: Stream, first: int, images: int, steps: int, temperature: float, **flags: bool,
) -> None:  # fmt: skip
    from hamburger.ops.cosine_stream_kernels import cosine_stream_kernel

    (_, d, n), r = x.shape, bases.shape[2]
    start(
        cosine_stream_kernel, (cut.programs, images),
        x, bases, found, scale, codes, y, sums, counts,
        first, d, n, r, steps, cut.programs, temperature, *x.stride(), *y.stride(), counts.stride(0),
        D=cut.D, R=cut.R, BN=BN, N_FAST=x.stride(2) == 1, ASYNC=asynchronous(x), num_warps=8, **flags,
    )  # fmt: skip
