"""Soft vector quantisation. Derivation and cost: README.md in this folder."""

from __future__ import annotations

from torch import Tensor

from hamburger.ops.vq import reference
from hamburger.shapes import check_shapes

__all__ = ["codes_of", "solve"]


def solve(x: Tensor, bases: Tensor, *, steps: int, temperature: float = 0.01) -> Tensor:
    """K sweeps of soft k-means under cosine similarity.

    x: b d n    bases: b d r    ->    b d r
    """
    check_shapes("vq.solve", x=(x, "b d n"), bases=(bases, "b d r"))
    return reference.solve(x, bases, steps, temperature)


def codes_of(x: Tensor, bases: Tensor, *, temperature: float = 0.01, constant_norms: bool = False) -> Tensor:
    """The codes of x under fixed bases: the read-out. Each column sums to 1.

    `constant_norms` leaves |x| out of the gradient.

    x: b d n    bases: b d r    ->    b r n
    """
    check_shapes("vq.codes_of", x=(x, "b d n"), bases=(bases, "b d r"))
    return reference.codes_of(x, bases, temperature, constant_norms)
