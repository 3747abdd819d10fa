"""Soft k-means by cosine in one pass over X per sweep, whatever n is, as VQ and CD share it on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops.cosine_fused import centroids
from hamburger.ops.launch import FEW, total
from hamburger.ops.start import start
from hamburger.ops.stream import BN, Stream, asynchronous
from hamburger.ops.tiles import blocks


def shared_bytes(D: int, R: int) -> int:
    """A tile of X, D and the codes in two halves each; or one of the codes and two stages of Y. And what sums need."""
    return 2 * (D * BN + 2 * D * R + max(2 * BN * R, BN * R + 2 * 64 * BN)) + 4096


def sweeps(
    x: Tensor, bases: Tensor, cut: Stream, steps: int, temperature: float, *, unit: bool
) -> tuple[Tensor, Tensor]:
    """As `cosine_fused.sweeps`, but for the codes, which nobody writes.   ->   bases: b d r,  1 / |x|: b n"""
    (b, d, n), r = x.shape, bases.shape[2]
    t = blocks(d, n, r, x.dtype)
    scale = torch.empty(b, n, dtype=torch.float32, device=x.device)
    sums = torch.empty(b, cut.programs, d + 1, r, dtype=torch.float32, device=x.device) if steps else scale
    for step in range(steps):
        _launch(x, bases, scale, None, None, sums, cut, temperature, first=step == 0, centroids=unit and step > 0)
        bases = centroids(sums if cut.programs <= FEW else total(sums)[:, None], t)
    return bases, scale


def read_out(
    x: Tensor, bases: Tensor, scale: Tensor, codes: Tensor, y: Tensor | None, cut: Stream, temperature: float,
    *, first: bool,
) -> None:  # fmt: skip
    """Write the codes, and where there is a y also D C."""
    _launch(x, bases, scale, codes, y, None, cut, temperature, first=first, centroids=False)


def _launch(
    x: Tensor, bases: Tensor, scale: Tensor, codes: Tensor | None, y: Tensor | None, sums: Tensor | None,
    cut: Stream, temperature: float, *, first: bool, centroids: bool,
) -> None:  # fmt: skip
    from hamburger.ops.cosine_stream_kernels import cosine_stream_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    out = x if y is None else y
    start(
        cosine_stream_kernel, (cut.programs, b),
        x, bases, scale, scale if codes is None else codes, out, scale if sums is None else sums,
        d, n, r, cut.programs, temperature, *x.stride(), *out.stride(),
        D=cut.D, R=cut.R, BN=BN, N_FAST=x.stride(2) == 1, ASYNC=asynchronous(x),
        FIRST=first, CENTROIDS=centroids, READOUT=codes is not None, Y=y is not None, num_warps=8,
    )  # fmt: skip
