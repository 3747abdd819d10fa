"""Soft concept decomposition. Derivation and cost: README.md in this folder."""

from __future__ import annotations

from torch import Tensor

from hamburger.ops.cd import reference
from hamburger.shapes import check_shapes

__all__ = ["ridge_codes", "solve"]


def solve(x: Tensor, bases: Tensor, *, steps: int, temperature: float = 0.01) -> Tensor:
    """K sweeps of soft spherical k-means.

    x: b d n    bases: b d r    ->    b d r, columns of unit length (zero where nobody chose the concept)
    """
    check_shapes("cd.solve", x=(x, "b d n"), bases=(bases, "b d r"))
    return reference.solve(x, bases, steps, temperature)


def ridge_codes(x: Tensor, bases: Tensor, *, beta: float = 0.1) -> Tensor:
    """Ridge regression of x on the bases: the read-out.

    x: b d n    bases: b d r    ->    b r n
    """
    check_shapes("cd.ridge_codes", x=(x, "b d n"), bases=(bases, "b d r"))
    return reference.ridge_codes(x, bases, beta)
