"""Non-negative matrix factorisation. Derivation and cost: README.md in this folder."""

from __future__ import annotations

from torch import Tensor

from hamburger.ops.nmf import reference
from hamburger.shapes import check_shapes

__all__ = ["first_codes", "solve", "update_codes"]


def first_codes(x: Tensor, bases: Tensor) -> Tensor:
    """Where the codes start: softmax over r of D^T X, as in the authors' code.

    x: b d n    bases: b d r    ->    b r n
    """
    check_shapes("nmf.first_codes", x=(x, "b d n"), bases=(bases, "b d r"))
    return reference.first_codes(x, bases)


def solve(x: Tensor, bases: Tensor, codes: Tensor, *, steps: int, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """K sweeps of multiplicative updates, codes first.

    x: b d n (>= 0)    bases: b d r    codes: b r n    ->    bases, codes
    """
    check_shapes("nmf.solve", x=(x, "b d n"), bases=(bases, "b d r"), codes=(codes, "b r n"))
    return reference.solve(x, bases, codes, steps, eps)


def update_codes(x: Tensor, bases: Tensor, codes: Tensor, *, eps: float = 1e-6) -> Tensor:
    """One multiplicative update of the codes under fixed bases: the read-out.

    x: b d n    bases: b d r    codes: b r n    ->    b r n
    """
    check_shapes("nmf.update_codes", x=(x, "b d n"), bases=(bases, "b d r"), codes=(codes, "b r n"))
    return reference.update_codes(x, bases, codes, eps)
