"""Launch the Hopper kernels of NMF: the resident and the streaming variant."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.kernels import common
from hamburger.kernels.launcher import launch
from hamburger.kernels.tiling import BN, ResidentGrid, StreamingGrid, can_copy_async, row_width

BUFFERS = 2  # tiles of X in shared memory, where they are copied asynchronously


class NMFFactors(NamedTuple):
    """What a solve returns. The gradient of the read-out needs Q and the bases, nothing else."""

    bases: Tensor  # b d r
    codes: Tensor  # b n r
    product: Tensor | None  # D C: b d n
    ratio: Tensor | None  # Q = C / (D^T D C + eps) before the read-out: b n r


def unit_columns(programs: int) -> int:
    """Columns of a unit of D (64 rows), chosen so that there are about as many units as programs."""
    return 4 if programs > 64 else 8 if programs > 32 else 16 if programs > 16 else 32


def solve_resident(
    x: Tensor, bases: Tensor, grid: ResidentGrid, steps: int, eps: float,
    *, keep: bool, product: bool, dtype: torch.dtype, padded: bool = False, counters: Tensor | None = None,
) -> NMFFactors:  # fmt: skip
    """x: b d n, bfloat16   bases: b d r, float32   Options: see `nmf.solve_factors`."""
    from hamburger.kernels.hopper.nmf_resident import nmf_resident_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    new_bases = torch.empty(b, d, r, dtype=torch.float32, device=x.device)
    codes = torch.empty(b, n, r, dtype=dtype, device=x.device)
    y = torch.empty_like(x) if product else None
    ratio = torch.empty(b, n, r, dtype=x.dtype, device=x.device) if keep else None
    copy = torch.empty(b, grid.D, grid.R, dtype=x.dtype, device=x.device)
    sums = torch.empty(b, grid.programs, grid.D + grid.R, grid.R, dtype=x.dtype, device=x.device)
    if counters is None:
        counters = common.zero_counters(b, x.device)
    out = x if y is None else y
    launch(
        nmf_resident_kernel, (grid.programs, b),
        x, bases, new_bases, copy, codes, x if ratio is None else ratio, out, sums, counters,
        d, n, row_width(x, padded=padded), r, steps, grid.programs, eps,
        *x.stride(), *out.stride(), bases.stride(0), counters.stride(0),
        D=grid.D, R=grid.R, BN=grid.BN, COLS=unit_columns(grid.programs),
        N_FAST=x.stride(2) == 1, RATIO=keep, Y=product, num_warps=8, launch_cooperative_grid=True,
    )  # fmt: skip
    if steps == 0:
        new_bases.copy_(bases)
    return NMFFactors(new_bases, codes, y, ratio)


def streaming_bytes(D: int, R: int) -> int:
    """Shared memory: X, D, codes and D^T D in bfloat16, and what sums and changes of layout need."""
    return 2 * (BUFFERS * D * BN + D * R + BN * R + R * R) + 8192


def solve_streaming(
    x: Tensor, bases: Tensor, grid: StreamingGrid, steps: int, eps: float,
    *, keep: bool, product: bool, dtype: torch.dtype, padded: bool = False, counters: Tensor | None = None,
) -> NMFFactors:  # fmt: skip
    """One launch for all steps and one for the read-out. Arguments as in `solve_resident`; any n."""
    (b, _, n), r = x.shape, bases.shape[2]
    new_bases = torch.empty_like(bases) if steps else bases.clone()
    last = torch.empty(b, n, r, dtype=dtype, device=x.device)
    y = torch.empty_like(x) if product else None
    ratio = torch.empty_like(last, dtype=x.dtype) if keep else None
    if steps:
        copy = torch.empty(b, grid.D, grid.R, dtype=x.dtype, device=x.device)
        sums = torch.empty(b, grid.programs, grid.D + grid.R, grid.R, dtype=x.dtype, device=x.device)
        if counters is None:
            counters = common.zero_counters(b, x.device)
        for first in range(0, b, grid.images):
            images = min(grid.images, b - first)
            _launch_streaming(
                x, bases, new_bases, copy, last, last, x, x, sums, counters, grid, first, images, steps, eps, padded,
                FIRST=True, READOUT=False, RATIO=False, Y=False, launch_cooperative_grid=True,
            )  # fmt: skip
    out = x if y is None else y
    # a read-out does not touch copy, sums and counters: any tensors do
    _launch_streaming(
        x, new_bases, new_bases, x, last, last, x if ratio is None else ratio, out, x, last,
        grid, 0, b, steps, eps, padded,
        FIRST=not steps, READOUT=True, RATIO=keep, Y=product,
    )  # fmt: skip
    return NMFFactors(new_bases, last, y, ratio)


def _launch_streaming(
    x: Tensor, bases: Tensor, new_bases: Tensor, copy: Tensor, codes: Tensor, last: Tensor, ratio: Tensor, y: Tensor,
    sums: Tensor, counters: Tensor, grid: StreamingGrid, first: int, images: int, steps: int, eps: float,
    padded: bool, **flags: bool,
) -> None:  # fmt: skip
    from hamburger.kernels.hopper.nmf_streaming import nmf_streaming_kernel

    (_, d, n), r, is_async = x.shape, bases.shape[2], can_copy_async(x, padded=padded)
    launch(
        nmf_streaming_kernel, (grid.programs, images),
        x, bases, new_bases, copy, codes, last, ratio, y, sums, counters,
        first, d, n, row_width(x, padded=padded), r, steps, grid.programs, eps,
        *x.stride(), *y.stride(), counters.stride(0),
        D=grid.D, R=grid.R, BN=BN, PLACES=BUFFERS if is_async else 1, COLS=unit_columns(grid.programs),
        N_FAST=x.stride(2) == 1, ASYNC=is_async, num_warps=8, **flags,
    )  # fmt: skip
