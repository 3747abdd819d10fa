"""Soft vector quantisation (the paper's Algorithm 1): the definition, in plain torch."""

from __future__ import annotations

from torch import Tensor

from hamburger.ops import cosine


def codes_of(x: Tensor, bases: Tensor, temperature: float, constant_norms: bool) -> Tensor:
    """softmax over r of cosine(D, X) / T.   x: b d n   bases: b d r   ->   b r n"""
    scale = cosine.inverse_norms(x.detach() if constant_norms else x)
    return cosine.assign(x, scale, bases, temperature)


def solve(x: Tensor, bases: Tensor, steps: int, temperature: float) -> Tensor:
    """`steps` sweeps: assign every column, then move each basis to the mean of its columns."""
    scale = cosine.inverse_norms(x)
    for _ in range(steps):
        codes = cosine.assign(x, scale, bases, temperature)
        bases = cosine.centroids(*cosine.sums_over_positions(x, codes))
    return bases
