"""NMF by multiplicative updates: Algorithm 2 of the paper (Lee & Seung, 2001).

Minimise f(D, C) = 1/2 |X - D C|^2 over D, C >= 0, where X >= 0 is d x n, D is d x r and C is r x n.

The gradient in C is D^T D C - D^T X: a positive part minus a positive part. A gradient step with the entry-wise step
size C / (D^T D C) becomes a product, which cannot leave the non-negative orthant:

    C <- C - C / (D^T D C) * (D^T D C - D^T X)  =  C * (D^T X) / (D^T D C)

and likewise D <- D * (X C^T) / (D C C^T). Lee and Seung show that no half-step raises f: it minimises a quadratic that
touches f at the current point and lies above it elsewhere. `eps` in both denominators prevents 0/0 and shrinks the
result by about eps over the denominator. A zero stays zero, so neither factor should start near it: D is uniform with
unit columns, C a softmax at temperature 1.

Cost of one step in multiply-adds: D^T X and X C^T, n d r each; D^T D and D (C C^T), d r^2 each; (D^T D) C and C C^T,
n r^2 each. D C, which would cost n d r again, is never formed. With K steps, the first codes, the read-out and the
product at the end: n d r (2K + 3) + r^2 (n + d) (2K + 1). At n = 16,384, d = 512, r = 64, K = 6 that is 8.95e9, and
with both breads (2 n d^2) 17.54e9; the 17.6 G of the paper's Table 3 also count element-wise products.

Scale: for any positive diagonal S, (D S, S^-1 C) has the same product, and a step commutes with the exchange. So the
Jacobian of a step has r eigenvalues at 1 (but for `eps`), which is why the implicit gradient works in coordinates with
unit columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hamburger.errors import check_choice, check_flag, check_positive
from hamburger.hams import cosine
from hamburger.hams.base import Factors, Ham, hams, product, project, softmax, weyl_multipliers, weyl_uniform
from hamburger.kernels.dispatch import FusedSpec
from hamburger.tensors import check_shapes

CODES_INIT = ("softmax", "cosine", "uniform")


@hams.register("nmf")
@dataclass(frozen=True)
class NMF(Ham):
    """X ~ D C with D, C >= 0. Needs x >= 0, so the lower bread ends in a ReLU.

    >>> out = hb.decompose(x.relu(), hb.NMF(rank=4, eps=1e-6), steps=6)
    >>> layer = hb.Hamburger(64, ham=hb.NMF(rank=8))                    # the same as ham="nmf", rank=8

    - `codes_init`: the first codes: "softmax" over r of D^T X (the authors' code), "cosine" (the paper's text: softmax
      of cosine(D, X) / `codes_temperature`), or "uniform" on (0, 1).
    - `final_update`: after the last step update the codes once more for the final bases, as the authors' code does.
      False gives Algorithm 2 as printed: D_K C_K; the one-step gradient is then that of the last step (Eq. 13).
    - `eps` is added to both denominators; with 0 a zero row or column gives NaN.
    """

    eps: float = 1e-6
    codes_init: str = "softmax"
    codes_temperature: float = 1.0
    final_update: bool = True

    nonnegative: ClassVar[bool] = True
    scale_free: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("NMF", "eps", self.eps, zero=True)
        check_choice("NMF", "codes_init", self.codes_init, CODES_INIT)
        check_positive("NMF", "codes_temperature", self.codes_temperature)
        check_flag("NMF", "final_update", self.final_update)

    def fused_spec(self) -> FusedSpec | None:
        if type(self) is not NMF:  # a subclass may change any step
            return None
        unsupported = None
        if not self.final_update:
            unsupported = "the kernels end with a final update of the codes, which final_update=False leaves out"
        elif self.codes_init != "softmax":
            unsupported = f"the kernels start from codes_init='softmax', not from {self.codes_init!r}"
        return FusedSpec("nmf", (self.eps,), self.rank, unsupported)

    def objective(self, x: Tensor, factors: Factors) -> Tensor:
        """|X - D C|^2 / 2. No step raises it if eps is 0.   ->   b"""
        return super().objective(x, factors)

    def init(self, x: Tensor, bases: Tensor | None = None, generator: torch.Generator | None = None) -> Factors:
        random = bases is None  # given bases make the whole call a function of its inputs
        bases = super().init(x, bases, generator).bases
        if self.codes_init == "softmax":
            check_shapes("NMF.init", x=(x, "b d n"), bases=(bases, "b d r"))
            codes = first_codes(x, bases)
        elif self.codes_init == "cosine":
            codes = cosine.assign(x, cosine.inverse_norms(x), bases, temperature=self.codes_temperature)
        elif random:
            device = x.device if generator is None else generator.device
            shape = (x.shape[0], self.rank, x.shape[2])
            codes = torch.rand(shape, generator=generator, dtype=bases.dtype, device=device).to(x.device)
        else:
            multipliers = torch.tensor(weyl_multipliers(self.rank), device=x.device)
            codes = weyl_uniform(multipliers, x.shape[2], dtype=bases.dtype).expand(x.shape[0], -1, -1)
        return Factors(bases, codes)

    @property
    def readout_updates(self) -> bool:
        return self.final_update

    def update_codes(self, x: Tensor, factors: Factors) -> Tensor:
        bases, codes = factors
        assert codes is not None
        check_shapes("NMF", x=(x, "b d n"), bases=(bases, "b d r"), codes=(codes, "b r n"))
        # D^T D first: it is r x r, where D C would be as large as X
        denominator = product(codes.mT.to(x.dtype), product(bases.mT, bases))
        return multiply(codes.mT, product(x.mT, bases), denominator, self.eps).mT

    def sum_positions(self, x: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
        return product(x, codes.mT), product(codes.to(x.dtype), codes.mT)

    def update_bases(self, bases: Tensor, sums: tuple[Tensor, ...]) -> Tensor:
        xc, cc = sums
        return multiply(bases, xc, product(bases, cc), self.eps)

    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        if self.final_update:
            return self.update_codes(x, factors)
        assert factors.codes is not None
        return factors.codes


# -- the maths ---------------------------------------------------------------------------------------------------------
# Codes are b r n to the caller and lie n x r in memory, behind a transposed view: the products with X then run along
# its rows and its columns as they lie in memory, which a CPU does faster when n is large.


def first_codes(x: Tensor, bases: Tensor) -> Tensor:
    """softmax over r of D^T X, as in the authors' code.   x: b d n   bases: b d r   ->   b r n"""
    return softmax(project(x, bases)).mT


def multiply(factor: Tensor, numerator: Tensor, denominator: Tensor, eps: float) -> Tensor:
    """factor * numerator / (denominator + eps); without a graph, in the memory of the two new products."""
    if torch.is_grad_enabled():
        return factor * numerator / (denominator + eps)
    return numerator.mul_(factor).div_(denominator.add_(eps))
