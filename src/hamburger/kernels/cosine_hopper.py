"""Launch the Hopper kernels of VQ and CD: resident and streaming soft k-means, and the ridge projector of CD."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.kernels import launcher
from hamburger.kernels.launcher import launch
from hamburger.kernels.tiling import BN, ResidentGrid, StreamingGrid, can_copy_async, cdiv, power_of_two

MANY_PARTIAL_SUMS = 1 << 21  # numbers, of all programs: so many are written in half the bytes


class ExchangeMemory(NamedTuple):
    """What a solve writes next to its results: see `hopper.cosine_resident.Exchange`."""

    copy: Tensor
    shares: Tensor
    scratch: Tensor
    counters: Tensor


def resident_bytes(D: int, R: int, BN: int) -> int:
    """X and two stages of both halves of D, whose place C takes; or for the product C and two stages of D and of Y.

    And what changes of layout need.
    """
    stage = 8192 // R
    return 2 * max(D * BN + 4 * stage * R, BN * R + 2 * stage * (R + BN)) + 8192


def reducer_count(grid: ResidentGrid) -> int:
    """Programs that update D: a power of two, and 4 rows for each at the least."""
    return 1 << (min(grid.programs, grid.D // 4).bit_length() - 1)


def partial_sums_dtype(grid: ResidentGrid) -> torch.dtype:
    """What a partial sum of X C^T is written in: float32 where that costs no time, and for a high rank, whose columns
    of D are closer to each other."""
    many = grid.programs * grid.D * grid.R >= MANY_PARTIAL_SUMS
    return torch.int16 if many and grid.R == 64 else torch.float32


def exchange_memory(b: int, grid: ResidentGrid, device: torch.device, counts: Tensor | None = None) -> ExchangeMemory:
    """counts: `launcher.zero_counters`, if the caller has them already"""
    D, R, programs = grid.D, grid.R, grid.programs
    return ExchangeMemory(
        torch.empty(b, 2, D, R, dtype=torch.bfloat16, device=device),
        torch.empty(b, programs, D, R, dtype=partial_sums_dtype(grid), device=device),
        torch.empty(b, programs * R + programs * D + D // 4 * R, dtype=torch.float32, device=device),
        launcher.zero_counters(b, device) if counts is None else counts,
    )


def resident_constants(x: Tensor, grid: ResidentGrid) -> dict[str, Any]:
    """Of the kernels, and of their launch."""
    return {
        "D": grid.D,
        "R": grid.R,
        "BN": grid.BN,
        "OWNERS": reducer_count(grid),
        "MOST": power_of_two(grid.programs),
        "N_FAST": x.stride(2) == 1,
        "num_warps": 8,
        "launch_cooperative_grid": True,
    }


# -- streaming: one pass over X per step, all steps in one launch ------------------------------------------------------


def streaming_bytes(D: int, R: int) -> int:
    """A tile of X, D and the codes in two halves each; or one of the codes and two stages of Y. And what sums need."""
    return 2 * (D * BN + 2 * D * R + max(2 * BN * R, BN * R + 2 * 64 * BN)) + 4096


def run_streaming_steps(
    x: Tensor,
    bases: Tensor,
    cut: StreamingGrid,
    steps: int,
    temperature: float,
    *,
    unit: bool,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `cosine.run_steps`, without writing codes.   ->   bases: b d r,  1 / |x|: b n

    counts: see `cosine_hopper.exchange_memory`
    """
    b, _, n = x.shape
    scale = torch.empty(b, n, dtype=torch.float32, device=x.device)
    if not steps:
        return bases.clone(), scale
    found = torch.empty_like(bases)
    sums = torch.empty(b, cut.programs, cut.D + 1, cut.R, dtype=torch.float32, device=x.device)
    if counts is None:
        counts = launcher.zero_counters(b, x.device)
    for first in range(0, b, cut.images):
        images = min(cut.images, b - first)
        _launch_streaming(
            x, bases, found, scale, scale, x, sums, counts, cut, first, images, steps, temperature,
            FIRST=True, CENTROIDS=unit, READOUT=False, Y=False, launch_cooperative_grid=True,
        )  # fmt: skip
    return found, scale


def read_out_streaming(
    x: Tensor, bases: Tensor, scale: Tensor, codes: Tensor, y: Tensor | None, cut: StreamingGrid, temperature: float,
    *, first: bool,
) -> None:  # fmt: skip
    """Write the codes, and where there is a y also D C."""
    # what a read-out does not look at (found, sums, counts) is any memory
    _launch_streaming(
        x, bases, bases, scale, codes, x if y is None else y, scale, scale, cut, 0, x.shape[0], 0, temperature,
        FIRST=first, CENTROIDS=False, READOUT=True, Y=y is not None,
    )  # fmt: skip


def _launch_streaming(
    x: Tensor, bases: Tensor, found: Tensor, scale: Tensor, codes: Tensor, y: Tensor, sums: Tensor, counts: Tensor,
    cut: StreamingGrid, first: int, images: int, steps: int, temperature: float, **flags: bool,
) -> None:  # fmt: skip
    from hamburger.kernels.hopper.cosine_streaming import cosine_streaming_kernel

    (_, d, n), r = x.shape, bases.shape[2]
    launch(
        cosine_streaming_kernel, (cut.programs, images),
        x, bases, found, scale, codes, y, sums, counts,
        first, d, n, r, steps, cut.programs, temperature, *x.stride(), *y.stride(), counts.stride(0),
        D=cut.D, R=cut.R, BN=BN, N_FAST=x.stride(2) == 1, ASYNC=can_copy_async(x), num_warps=8, **flags,
    )  # fmt: skip


# -- VQ, resident ------------------------------------------------------------------------------------------------------


def solve_vq_resident(
    x: Tensor,
    bases: Tensor,
    grid: ResidentGrid,
    steps: int,
    temperature: float,
    *,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `solve_factors`"""
    from hamburger.kernels.hopper.cosine_resident import vq_resident_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    found = torch.empty(b, d, r, dtype=torch.float32, device=x.device)
    codes = torch.empty(b, n, r, dtype=dtype, device=x.device)
    y = torch.empty_like(x) if product else None
    out, its = x if y is None else y, exchange_memory(b, grid, x.device, counts)
    launch(
        vq_resident_kernel, (grid.programs, b),
        x, bases, found, its.copy, codes, out, its.shares, its.scratch, its.counters,
        d, n, r, steps, grid.programs, temperature, *x.stride(), *out.stride(), bases.stride(0),
        Y=product, **resident_constants(x, grid),
    )  # fmt: skip
    if steps == 0:
        found.copy_(bases)
    return found, codes, y


# -- CD, resident ------------------------------------------------------------------------------------------------------


# Of the ridge: below it the inverse, which is made in float32 without exchange of rows, loses too many digits where
# concepts all but coincide. Torch's solve takes those.
MIN_BETA = 0.01


def has_ridge_kernel(steps: int, beta: float) -> bool:
    """Whether the kernel does it at all: without a step the bases need not be of unit length."""
    return steps > 0 and beta >= MIN_BETA


def cd_resident_bytes(D: int, R: int, BN: int) -> int:
    """As VQ, or for the read-out, when X is no longer needed: the ridge matrix and X^T D, each as three bfloat16."""
    return max(resident_bytes(D, R, BN), 6 * R * (R + BN) + 8192)


def solve_cd_resident(
    x: Tensor,
    bases: Tensor,
    grid: ResidentGrid,
    steps: int,
    temperature: float,
    beta: float,
    *,
    keep: bool,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `solve_factors`"""
    from hamburger.kernels.hopper.cosine_resident import cd_resident_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    found = torch.empty(b, d, r, dtype=torch.float32, device=x.device)
    codes = torch.empty(b, n, r, dtype=dtype, device=x.device)
    projector = torch.empty_like(found) if keep else None
    y = torch.empty_like(x) if product else None
    out, its = x if y is None else y, exchange_memory(b, grid, x.device, counts)
    launch(
        cd_resident_kernel, (grid.programs, b),
        x, bases, found, its.copy, codes, found if projector is None else projector, out,
        its.shares, its.scratch, its.counters,
        d, n, r, steps, grid.programs, temperature, beta, *x.stride(), *out.stride(), bases.stride(0),
        PROJECTOR=keep, Y=product, **resident_constants(x, grid),
    )  # fmt: skip
    return found, codes, y, projector


# -- CD: the ridge projector -------------------------------------------------------------------------------------------


def launch_ridge_projector(centroids: Tensor, beta: float, cut: StreamingGrid) -> tuple[Tensor, Tensor]:
    """b d r   ->   the same with columns of unit length,  their projector (D^T D + beta I)^-1 D^T, transposed: b d r"""
    from hamburger.kernels.hopper.ridge import ridge_kernel

    b, d, r = centroids.shape
    bases, found = torch.empty_like(centroids), torch.empty_like(centroids)
    launch(ridge_kernel, (cdiv(d, 64), b), centroids, bases, found, d, r, beta, D=cut.D, R=cut.R, num_warps=8)
    return bases, found
