"""Numbers that look uniform and are a pure function of their indices: the same on every device and in every call."""

from __future__ import annotations

import torch
from torch import Tensor

MODULUS = 2**24  # the integers that float32 holds exactly


def weyl_multipliers(r: int, seed: int = 0) -> list[list[int]]:
    """A multiplier and an offset below 2^24 for each of r sequences: two rows of r.

    Plain integers mixed by the splitmix64 finaliser: a generator object cannot be traced into an exported graph.
    """

    def mix(i: int) -> int:
        z = ((seed * 2 * r + i + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return (z ^ (z >> 31)) % MODULUS

    return [[mix(k) | 1 for k in range(r)], [mix(r + k) for k in range(r)]]  # odd multipliers have the full period


def weyl_uniform(multipliers: Tensor, n: int, *, dtype: torch.dtype) -> Tensor:
    """r sequences of length n, equidistributed on (0, 1).   multipliers: 2 r (int64)   ->   r n

    The Weyl sequence v = j a_k + b_k, then v (2 v + 1), which permutes the integers modulo a power of two and breaks
    the lattice that two Weyl sequences form together. Any n without a stored table, no random number generator in an
    exported graph, and integer arithmetic, so that two devices agree to the bit.
    """
    a, b = multipliers[:, :, None]
    v = (a * torch.arange(n, device=multipliers.device) + b).remainder(MODULUS)
    return ((v * (2 * v + 1)).remainder(MODULUS).to(dtype) + 0.5) / MODULUS
