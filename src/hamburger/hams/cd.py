"""Soft concept decomposition: Algorithm 3 of the paper (Dhillon & Modha, 2001).

Bases by soft spherical k-means: the assignments of VQ, then D = X C^T with unit columns. The codes at the end are not
the assignments but the ridge solution under those bases (Eq. 14 of the paper):

    C = (D^T D + beta I)^-1 D^T X

With unit columns the eigenvalues of D^T D are at most r, so the condition number is at most (r + beta) / beta. For
beta = 0 and a rank above d or n the inverse does not exist, and `CD.check` raises.

The order of the products matters: (D^T D + beta I)^-1 D^T is r x d, and solving for it costs r^2 d instead of r^2 n.
One product with X then gives the codes. D C is the projection of X on the span of D, shrunk along its weak directions;
its derivative in X (D constant) is that symmetric projector itself.

ONNX has no linear solve. There the inverse is made of products: Z <- Z (2I - A Z) from Z = I / |A|_inf, which doubles
the correct digits each time (`linalg.solve_by_products`).

Cost in multiply-adds: per step 2 n d r; read-out n d r + r^2 (d + r); product n d r: n d r (2K + 2) + small.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hamburger.errors import OptionError, check_positive
from hamburger.hams import cosine
from hamburger.hams.base import Factors, Ham, hams, product
from hamburger.kernels.dispatch import FusedSpec
from hamburger.linalg import ridge_projector
from hamburger.tensors import check_shapes


@hams.register("cd")
@dataclass(frozen=True)
class CD(Ham):
    """Bases by soft spherical k-means, codes by ridge regression of X on them (weight `beta`).

    >>> out = hb.decompose(x, hb.CD(rank=4, beta=0.01), steps=6)
    >>> layer = hb.Hamburger(64, ham=hb.CD(rank=8))                     # the same as ham="cd", rank=8
    """

    temperature: float = 0.01
    beta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("CD", "temperature", self.temperature)
        check_positive("CD", "beta", self.beta, zero=True)

    def check(self, d: int, n: int) -> None:
        if self.beta == 0 and self.rank > min(d, n):
            raise OptionError(
                f"CD: with beta=0 the rank must not exceed d and n (D^T D has no inverse), got rank={self.rank} "
                f"for d={d}, n={n}; lower the rank or take beta > 0, the paper's 0.1 or 0.01"
            )

    def fused_spec(self) -> FusedSpec | None:
        if type(self) is not CD:  # a subclass may change any step
            return None
        return FusedSpec("cd", (self.temperature, self.beta), self.rank)

    def step(self, x: Tensor, factors: Factors) -> Factors:
        return self.solve(x, factors, 1)

    def solve(self, x: Tensor, factors: Factors, steps: int) -> Factors:
        if steps == 0:
            return factors
        check_shapes("CD.solve", x=(x, "b d n"), bases=(factors.bases, "b d r"))
        return Factors(cosine.run_steps(x, factors.bases, steps, self.temperature, unit=True)[0])

    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        check_shapes("CD.readout", x=(x, "b d n"), bases=(factors.bases, "b d r"))
        # Solve for the r x d projector, not for r x n codes: the triangular solves then do not grow with n.
        return product(ridge_projector(factors.bases, self.beta), x)

    def objective(self, x: Tensor, factors: Factors) -> Tensor:
        """|X - D C|^2 / 2 + beta |C|^2 / 2, with ridge codes. A step may raise it: k-means moves the bases.   ->   b"""
        codes = self.readout(x, factors)
        return super().objective(x, Factors(factors.bases, codes)) + self.beta * codes.square().sum((1, 2)) / 2

    def update_codes(self, x: Tensor, factors: Factors) -> Tensor:
        return cosine.assign(x, cosine.inverse_norms(x), factors.bases, self.temperature)

    def sum_positions(self, x: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
        return cosine.sums_over_positions(x, codes)

    def update_bases(self, bases: Tensor, sums: tuple[Tensor, ...]) -> Tensor:
        xc, mass = sums
        return cosine.cluster_means(xc, mass, unit=True)
