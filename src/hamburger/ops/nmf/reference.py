"""Multiplicative updates for X ~ D C with D, C >= 0 (the paper's Algorithm 2): the definition, in plain torch."""

from __future__ import annotations

from torch import Tensor


def update_codes(x: Tensor, bases: Tensor, codes: Tensor, eps: float) -> Tensor:
    """C <- C * (D^T X) / (D^T D C + eps).   x: b d n   bases: b d r   codes: b r n   ->   b r n"""
    # D^T D first: it is r x r, where D C would be as large as X. Transposed throughout: the codes of a position then
    # lie side by side in memory, which is the faster layout for these products when n is large.
    rows = codes.mT
    return (rows * (x.mT @ bases) / (rows @ (bases.mT @ bases) + eps)).mT


def sums_over_positions(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """X C^T and C C^T, the only places where positions meet.   x: b d n   codes: b r n   ->   b d r,  b r r"""
    return x @ codes.mT, codes @ codes.mT


def update_bases(bases: Tensor, xc: Tensor, cc: Tensor, eps: float) -> Tensor:
    """D <- D * (X C^T) / (D C C^T + eps).   bases, xc: b d r   cc: b r r   ->   b d r"""
    return bases * xc / (bases @ cc + eps)


def solve(x: Tensor, bases: Tensor, codes: Tensor, steps: int, eps: float) -> tuple[Tensor, Tensor]:
    """`steps` sweeps, each the codes and then, with the new codes, the bases."""
    for _ in range(steps):
        codes = update_codes(x, bases, codes, eps)
        bases = update_bases(bases, *sums_over_positions(x, codes), eps)
    return bases, codes
