"""Numbers that look uniform and are a pure function of their indices: the same on every device and in every call."""

from __future__ import annotations

import torch
from torch import Tensor

MODULUS = 2**24  # the integers that float32 holds exactly


def weyl_multipliers(r: int, generator: torch.Generator) -> Tensor:
    """Random odd multipliers and offsets, one pair for each of r sequences.   ->   2 r, int64"""
    odd = torch.randint(MODULUS // 2, (r,), generator=generator) * 2 + 1
    return torch.stack([odd, torch.randint(MODULUS, (r,), generator=generator)])


def weyl_uniform(r: int, n: int, *, like: Tensor, multipliers: Tensor | None = None) -> Tensor:
    """r sequences of length n, equidistributed on (0, 1).   ->   r n

    The Weyl sequence v = j a_k + b_k, then v (2 v + 1), which permutes the integers modulo a power of two and breaks
    the lattice that two Weyl sequences form together. Any n without a stored table, no random number generator in an
    exported graph, and integer arithmetic, so that two devices agree to the bit.
    """
    if multipliers is None:
        multipliers = weyl_multipliers(r, torch.Generator().manual_seed(0)).to(like.device)
    a, b = multipliers[:, :, None]
    j = torch.arange(n, device=like.device)
    v = (a * j + b).remainder(MODULUS)
    return ((v * (2 * v + 1)).remainder(MODULUS).to(like.dtype) + 0.5) / MODULUS
