"""Soft concept decomposition: Algorithm 3 of the paper (Dhillon & Modha, 2001)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hamburger.errors import OptionError, check_positive
from hamburger.ops import cd
from hamburger.solvers.base import Factors, Ham, hams


@hams.register("cd")
@dataclass(frozen=True)
class CD(Ham):
    """Bases by soft spherical k-means, codes by ridge regression of X on them (weight `beta`)."""

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

    def step(self, x: Tensor, factors: Factors) -> Factors:
        return self.solve(x, factors, 1)

    def solve(self, x: Tensor, factors: Factors, steps: int) -> Factors:
        if steps == 0:
            return factors
        return Factors(cd.solve(x, factors.bases, steps=steps, temperature=self.temperature))

    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        return cd.ridge_codes(x, factors.bases, beta=self.beta)
