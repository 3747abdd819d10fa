"""Launch the Hopper kernels of NMF: the resident and the streaming variant."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.kernels import launcher
from hamburger.kernels.launcher import launch
from hamburger.kernels.tiling import BN, ResidentGrid, StreamingGrid, can_copy_async


def resident_bytes(D: int, R: int, BN: int) -> int:
    """Tiles of X, D, C and D^T D in bfloat16, and what changes of layout need."""
    return 2 * (D * BN + D * R + BN * R + R * R) + 8192


def unit_columns(programs: int) -> int:
    """Of a unit of 64 rows, in which D is updated: so that there are about as many units as programs."""
    return 4 if programs > 64 else 8 if programs > 32 else 16 if programs > 16 else 32


def solve_resident(
    x: Tensor,
    bases: Tensor,
    grid: ResidentGrid,
    steps: int,
    eps: float,
    *,
    keep: bool,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `solve_factors`

    counts: two or more zeros for each image, if the caller has them already
    """
    from hamburger.kernels.hopper.nmf_resident import nmf_resident_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    found = torch.empty(b, d, r, dtype=torch.float32, device=x.device)
    codes = torch.empty(b, n, r, dtype=dtype, device=x.device)
    y = torch.empty_like(x) if product else None
    ratio = torch.empty(b, n, r, dtype=x.dtype, device=x.device) if keep else None
    copy = torch.empty(b, grid.D, grid.R, dtype=x.dtype, device=x.device)
    sums = torch.empty(b, grid.programs, grid.D + grid.R, grid.R, dtype=x.dtype, device=x.device)
    if counts is None:
        counts = launcher.zero_counters(b, x.device)
    out = x if y is None else y
    launch(
        nmf_resident_kernel, (grid.programs, b),
        x, bases, found, copy, codes, x if ratio is None else ratio, out, sums, counts,
        d, n, r, steps, grid.programs, eps, *x.stride(), *out.stride(), bases.stride(0), counts.stride(0),
        D=grid.D, R=grid.R, BN=grid.BN, COLS=unit_columns(grid.programs),
        N_FAST=x.stride(2) == 1, RATIO=keep, Y=product, num_warps=8, launch_cooperative_grid=True,
    )  # fmt: skip
    if steps == 0:
        found.copy_(bases)
    return found, codes, y, ratio


# -- streaming: one pass over X per step, all steps in one launch, any n -----------------------------------------------


BUFFERS = 2  # for tiles of X, where they are copied in the background


def streaming_bytes(D: int, R: int) -> int:
    """X, D, codes and D^T D in bfloat16, and what sums and changes of layout need."""
    return 2 * (BUFFERS * D * BN + D * R + BN * R + R * R) + 8192


def solve_streaming(
    x: Tensor,
    bases: Tensor,
    cut: StreamingGrid,
    steps: int,
    eps: float,
    *,
    keep: bool,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `solve_factors`   (counts: see
    `nmf_hopper.solve_resident`)
    """
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
            counts = launcher.zero_counters(b, x.device)
        for first in range(0, b, cut.images):
            images = min(cut.images, b - first)
            _launch_streaming(
                x, bases, found, copy, codes, codes, x, x, sums, counts, cut, first, images, steps, eps,
                FIRST=True, READOUT=False, RATIO=False, Y=False, launch_cooperative_grid=True,
            )  # fmt: skip
    out = x if y is None else y
    # what a read-out does not look at (copy, sums, counts) is any memory
    _launch_streaming(
        x, found, found, x, codes, last, x if ratio is None else ratio, out, x, codes, cut, 0, b, steps, eps,
        FIRST=not steps, READOUT=True, RATIO=keep, Y=product,
    )  # fmt: skip
    return found, last, y, ratio


def _launch_streaming(
    x: Tensor, bases: Tensor, found: Tensor, copy: Tensor, codes: Tensor, last: Tensor, ratio: Tensor, y: Tensor,
    sums: Tensor, counts: Tensor, cut: StreamingGrid, first: int, images: int, steps: int, eps: float, **flags: bool,
) -> None:  # fmt: skip
    from hamburger.kernels.hopper.nmf_streaming import nmf_streaming_kernel

    (_, d, n), r, ahead = x.shape, bases.shape[2], can_copy_async(x)
    launch(
        nmf_streaming_kernel, (cut.programs, images),
        x, bases, found, copy, codes, last, ratio, y, sums, counts,
        first, d, n, r, steps, cut.programs, eps, *x.stride(), *y.stride(), counts.stride(0),
        D=cut.D, R=cut.R, BN=BN, PLACES=BUFFERS if ahead else 1, COLS=unit_columns(cut.programs),
        N_FAST=x.stride(2) == 1, ASYNC=ahead, num_warps=8, **flags,
    )  # fmt: skip
