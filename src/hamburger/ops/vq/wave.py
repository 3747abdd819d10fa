"""Soft VQ in one launch, where all of it is on the card at once: the same values as reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops.cosine_wave import constants, memory
from hamburger.ops.start import start
from hamburger.ops.wave import Wave


def solve(
    x: Tensor,
    bases: Tensor,
    wave: Wave,
    steps: int,
    temperature: float,
    *,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x: b d n, bfloat16   bases: b d r, float32   ->   as `fused.factors`"""
    from hamburger.ops.vq.wave_kernels import vq_kernel

    (b, d, n), r = x.shape, bases.shape[2]
    found = torch.empty(b, d, r, dtype=torch.float32, device=x.device)
    codes = torch.empty(b, n, r, dtype=dtype, device=x.device)
    y = torch.empty_like(x) if product else None
    out, its = x if y is None else y, memory(b, wave, x.device, counts)
    start(
        vq_kernel, (wave.programs, b),
        x, bases, found, its.copy, codes, out, its.shares, its.scratch, its.counters,
        d, n, r, steps, wave.programs, temperature, *x.stride(), *out.stride(), bases.stride(0),
        Y=product, **constants(x, wave),
    )  # fmt: skip
    if steps == 0:
        found.copy_(bases)
    return found, codes, y
