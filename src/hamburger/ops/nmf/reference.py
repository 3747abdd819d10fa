"""Multiplicative updates for X ~ D C with D, C >= 0 (the paper's Algorithm 2): the definition, in plain torch.

Codes are b r n to the caller and lie n x r in memory, behind a transposed view: the products with X then run along
its rows and its columns as they lie, which a CPU does faster when n is large.
"""

from __future__ import annotations

import torch
from torch import Tensor, bmm


def first_codes(x: Tensor, bases: Tensor) -> Tensor:
    """softmax over r of D^T X.   x: b d n   bases: b d r   ->   b r n"""
    return bmm(x.mT, bases).softmax(dim=2).mT


def update_codes(x: Tensor, bases: Tensor, codes: Tensor, eps: float) -> Tensor:
    """C <- C * (D^T X) / (D^T D C + eps).   x: b d n   bases: b d r   codes: b r n   ->   b r n"""
    # D^T D first: it is r x r, where D C would be as large as X
    return multiply(codes.mT, bmm(x.mT, bases), bmm(codes.mT, bmm(bases.mT, bases)), eps).mT


def sums_over_positions(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """X C^T and C C^T, the only places where positions meet.   x: b d n   codes: b r n   ->   b d r,  b r r"""
    return bmm(x, codes.mT), bmm(codes, codes.mT)


def update_bases(bases: Tensor, xc: Tensor, cc: Tensor, eps: float) -> Tensor:
    """D <- D * (X C^T) / (D C C^T + eps).   bases, xc: b d r   cc: b r r   ->   b d r"""
    return multiply(bases, xc, bmm(bases, cc), eps)


def multiply(factor: Tensor, numerator: Tensor, denominator: Tensor, eps: float) -> Tensor:
    """factor * numerator / (denominator + eps); without a graph to keep, in the memory of the two fresh products."""
    if torch.is_grad_enabled():
        return factor * numerator / (denominator + eps)
    return numerator.mul_(factor).div_(denominator.add_(eps))


def solve(x: Tensor, bases: Tensor, codes: Tensor, steps: int, eps: float) -> tuple[Tensor, Tensor]:
    """`steps` sweeps, each the codes and then, with the new codes, the bases."""
    for _ in range(steps):
        codes = update_codes(x, bases, codes, eps)
        bases = update_bases(bases, *sums_over_positions(x, codes), eps)
    return bases, codes
