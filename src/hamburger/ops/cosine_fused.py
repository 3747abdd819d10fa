"""Sweeps of soft k-means in a few launches each, shared by VQ and CD."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.linalg import EPS
from hamburger.ops import launch
from hamburger.ops.cosine_kernels import assign_kernel, centroids_kernel
from hamburger.ops.start import start
from hamburger.ops.tiles import Blocks, cdiv, power_of_two

TINY = torch.finfo(torch.float32).tiny


def sweeps(
    x: Tensor, bases: Tensor, steps: int, temperature: float, t: Blocks, *, unit: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """K times: assign every column, then move each basis to the mean of its columns (as if brought to `unit` length).

    x: b d n   bases: b d r   ->   bases: b d r,  memory for codes: b n r,  1 / |x|: b n, empty memory where steps = 0
    """
    (b, _, n), r = x.shape, bases.shape[2]
    codes, scale = x.new_empty(b, n, r, dtype=torch.float32), x.new_empty(b, n, dtype=torch.float32)
    for step in range(steps):
        assign(x, bases, scale, codes, None, temperature, t, first=step == 0, centroids=unit and step > 0)
        sums = launch.sums(x, codes, t, launch.kind(x.dtype, fine=True), gram=False)
        bases = centroids(sums, t)
    return bases, codes, scale


def centroids(sums: Tensor, t: Blocks) -> Tensor:
    """X C^T diag(C 1)^-1.   sums: b parts (d + 1) r, X C^T above C 1   ->   b d r"""
    b, parts, rows, r = sums.shape
    d = rows - 1
    bases = torch.empty(b, d, r, dtype=torch.float32, device=sums.device)
    start(
        # tiles of d on the first axis: the others end at 65,535, and d is all positions where channels are decomposed
        centroids_kernel, (b * cdiv(d, t.FD), cdiv(r, t.FR)),
        sums, bases, d, r, parts, EPS=EPS, FD=t.FD, FR=t.FR, FP=min(t.FP, power_of_two(parts)), num_warps=4,
    )  # fmt: skip
    return bases


def assign(
    x: Tensor,
    bases: Tensor,
    scale: Tensor,
    codes: Tensor,
    y: Tensor | None,
    temperature: float,
    t: Blocks,
    *,
    first: bool,
    centroids: bool = False,
) -> None:
    """Write the codes, and where there is a y also D C."""
    (b, d, n), r = x.shape, bases.shape[2]
    out = x if y is None else y
    start(
        assign_kernel, (b * cdiv(n, t.BN),),
        x, bases, scale, codes, out, d, n, r, *x.stride(), *out.stride(), temperature,
        FIRST=first, CENTROIDS=centroids, EXPAND=y is not None, EPS=EPS, TINY=TINY,
        KIND=launch.kind(x.dtype, fine=True), COARSE=launch.kind(x.dtype), R=t.R, BN=t.BN, BD=t.BD, num_warps=t.warps,
    )  # fmt: skip
