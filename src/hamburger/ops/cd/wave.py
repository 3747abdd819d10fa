"""Soft CD in one launch, where all of it is on the card at once: the same values as reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops import cosine_wave
from hamburger.ops.start import start
from hamburger.ops.wave import Wave

# Of the ridge: below it the inverse, which is made in float32 without exchange of rows, loses too many digits where
# concepts all but coincide. Torch's solve takes those.
LEAST_BETA = 0.01


def fits(steps: int, beta: float) -> bool:
    """Whether the kernel does it at all: without a step the bases need not be of unit length."""
    return steps > 0 and beta >= LEAST_BETA


def shared_bytes(D: int, R: int, BN: int) -> int:
    """As VQ, or for the read-out, when X is no longer needed: the ridge matrix and X^T D, each as three bfloat16."""
    return max(cosine_wave.shared_bytes(D, R, BN), 6 * R * (R + BN) + 8192)


def solve(
    x: Tensor,
    bases: Tensor,
    wave: Wave,
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
    from hamburger.ops.cd.wave_kernels import cd_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    found = torch.empty(b, d, r, dtype=torch.float32, device=x.device)
    codes = torch.empty(b, n, r, dtype=dtype, device=x.device)
    projector = torch.empty_like(found) if keep else None
    y = torch.empty_like(x) if product else None
    out, its = x if y is None else y, cosine_wave.memory(b, wave, x.device, counts)
    start(
        cd_kernel, (wave.programs, b),
        x, bases, found, its.copy, codes, found if projector is None else projector, out,
        its.shares, its.scratch, its.counters,
        d, n, r, steps, wave.programs, temperature, beta, *x.stride(), *out.stride(), bases.stride(0),
        PROJECTOR=keep, Y=product, **cosine_wave.constants(x, wave),
    )  # fmt: skip
    return found, codes, y, projector
