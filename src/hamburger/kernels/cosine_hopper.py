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
    """What a solve writes beside its results: see `cosine_wave_kernels.Exchange`."""

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


def reducer_count(wave: ResidentGrid) -> int:
    """Programs that update D: a power of two, and 4 rows for each at the least."""
    return 1 << (min(wave.programs, wave.D // 4).bit_length() - 1)


def partial_sums_dtype(wave: ResidentGrid) -> torch.dtype:
    """What a share of X C^T is written in: float32 where that costs no time, and for a high rank, whose columns of D
    are closer to each other."""
    many = wave.programs * wave.D * wave.R >= MANY_PARTIAL_SUMS
    return torch.int16 if many and wave.R == 64 else torch.float32


def exchange_memory(b: int, wave: ResidentGrid, device: torch.device, counts: Tensor | None = None) -> ExchangeMemory:
    """counts: `launch.counters`, where somebody has them already"""
    D, R, programs = wave.D, wave.R, wave.programs
    return ExchangeMemory(
        torch.empty(b, 2, D, R, dtype=torch.bfloat16, device=device),
        torch.empty(b, programs, D, R, dtype=partial_sums_dtype(wave), device=device),
        torch.empty(b, programs * R + programs * D + D // 4 * R, dtype=torch.float32, device=device),
        launcher.zero_counters(b, device) if counts is None else counts,
    )


def resident_constants(x: Tensor, wave: ResidentGrid) -> dict[str, Any]:
    """Of the kernels, and of their launch."""
    return {
        "D": wave.D,
        "R": wave.R,
        "BN": wave.BN,
        "OWNERS": reducer_count(wave),
        "MOST": power_of_two(wave.programs),
        "N_FAST": x.stride(2) == 1,
        "num_warps": 8,
        "launch_cooperative_grid": True,
    }


# ----------------------------------------------------------------------------------------------------------------------
# Soft k-means by cosine with one pass over X per sweep, all sweeps in one launch: what VQ and CD share of it.


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


# ----------------------------------------------------------------------------------------------------------------------
# Soft VQ in one launch, where all of it is on the card at once: the same values as reference.py.


def solve_vq_resident(
    x: Tensor,
    bases: Tensor,
    wave: ResidentGrid,
    steps: int,
    temperature: float,
    *,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `fused.factors`"""
    from hamburger.kernels.hopper.cosine_resident import vq_resident_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    found = torch.empty(b, d, r, dtype=torch.float32, device=x.device)
    codes = torch.empty(b, n, r, dtype=dtype, device=x.device)
    y = torch.empty_like(x) if product else None
    out, its = x if y is None else y, exchange_memory(b, wave, x.device, counts)
    launch(
        vq_resident_kernel, (wave.programs, b),
        x, bases, found, its.copy, codes, out, its.shares, its.scratch, its.counters,
        d, n, r, steps, wave.programs, temperature, *x.stride(), *out.stride(), bases.stride(0),
        Y=product, **resident_constants(x, wave),
    )  # fmt: skip
    if steps == 0:
        found.copy_(bases)
    return found, codes, y


# ----------------------------------------------------------------------------------------------------------------------
# Soft CD in one launch, where all of it is on the card at once: the same values as reference.py.


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
    wave: ResidentGrid,
    steps: int,
    temperature: float,
    beta: float,
    *,
    keep: bool,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `fused.factors`"""
    from hamburger.kernels.hopper.cosine_resident import cd_resident_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    found = torch.empty(b, d, r, dtype=torch.float32, device=x.device)
    codes = torch.empty(b, n, r, dtype=dtype, device=x.device)
    projector = torch.empty_like(found) if keep else None
    y = torch.empty_like(x) if product else None
    out, its = x if y is None else y, exchange_memory(b, wave, x.device, counts)
    launch(
        cd_resident_kernel, (wave.programs, b),
        x, bases, found, its.copy, codes, found if projector is None else projector, out,
        its.shares, its.scratch, its.counters,
        d, n, r, steps, wave.programs, temperature, beta, *x.stride(), *out.stride(), bases.stride(0),
        PROJECTOR=keep, Y=product, **resident_constants(x, wave),
    )  # fmt: skip
    return found, codes, y, projector


# ----------------------------------------------------------------------------------------------------------------------
# The ridge projector of CD by a kernel of our own, where the one-launch form's inverse will do: see `wave.fits`.


def launch_ridge_projector(centroids: Tensor, beta: float, cut: StreamingGrid) -> tuple[Tensor, Tensor]:
    """b d r   ->   the same with columns of unit length,  their projector (D^T D + beta I)^-1 D^T, transposed: b d r"""
    from hamburger.kernels.hopper.ridge import ridge_kernel

    b, d, r = centroids.shape
    bases, found = torch.empty_like(centroids), torch.empty_like(centroids)
    launch(ridge_kernel, (cdiv(d, 64), b), centroids, bases, found, d, r, beta, D=cut.D, R=cut.R, num_warps=8)
    return bases, found
