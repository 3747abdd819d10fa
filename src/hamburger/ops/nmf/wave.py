"""NMF in one launch, where all of it is on the card at once: the same values as reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.start import start
from hamburger.ops.wave import Wave


def shared_bytes(D: int, R: int, BN: int) -> int:
    """Tiles of X, D, C and D^T D in bfloat16, and what changes of layout need."""
    return 2 * (D * BN + D * R + BN * R + R * R) + 8192


def columns(programs: int) -> int:
    """Of a unit of 64 rows, in which D is updated: so that there are about as many units as programs."""
    return 4 if programs > 64 else 8 if programs > 32 else 16 if programs > 16 else 32


def solve(
    x: Tensor,
    bases: Tensor,
    wave: Wave,
    steps: int,
    eps: float,
    *,
    keep: bool,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `fused.factors`

    counts: two or more zeros for each image, where somebody has them already
    """
    from hamburger.ops.nmf.wave_kernels import nmf_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    found = torch.empty(b, d, r, dtype=torch.float32, device=x.device)
    codes = torch.empty(b, n, r, dtype=dtype, device=x.device)
    y = torch.empty_like(x) if product else None
    ratio = torch.empty(b, n, r, dtype=x.dtype, device=x.device) if keep else None
    copy = torch.empty(b, wave.D, wave.R, dtype=x.dtype, device=x.device)
    sums = torch.empty(b, wave.programs, wave.D + wave.R, wave.R, dtype=x.dtype, device=x.device)
    if counts is None:
        counts = launch.counters(b, x.device)
    out = x if y is None else y
    start(
        nmf_kernel, (wave.programs, b),
        x, bases, found, copy, codes, x if ratio is None else ratio, out, sums, counts,
        d, n, r, steps, wave.programs, eps, *x.stride(), *out.stride(), bases.stride(0), counts.stride(0),
        D=wave.D, R=wave.R, BN=wave.BN, COLS=columns(wave.programs),
        N_FAST=x.stride(2) == 1, RATIO=keep, Y=product, num_warps=8, launch_cooperative_grid=True,
    )  # fmt: skip
    if steps == 0:
        found.copy_(bases)
    return found, codes, y, ratio
