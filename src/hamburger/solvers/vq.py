"""Soft vector quantisation: Algorithm 1 of the paper (Gray & Neuhoff, 1998)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hamburger.errors import check_flag, check_positive
from hamburger.ops import vq
from hamburger.solvers.base import Factors, Ham, hams


@hams.register("vq")
@dataclass(frozen=True)
class VQ(Ham):
    """Each column of X becomes a soft mixture of r cluster means; temperature -> 0 is k-means by cosine.

    The gradient of the read-out is that of the cosine, |x| included. The authors' code holds |x| constant there:
    `constant_norms=True` reproduces that. The value is the same.
    """

    temperature: float = 0.01
    constant_norms: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("VQ", "temperature", self.temperature)
        check_flag("VQ", "constant_norms", self.constant_norms)

    def step(self, x: Tensor, factors: Factors) -> Factors:
        return self.solve(x, factors, 1)

    def solve(self, x: Tensor, factors: Factors, steps: int) -> Factors:
        if steps == 0:
            return factors
        return Factors(vq.solve(x, factors.bases, steps=steps, temperature=self.temperature))

    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        return vq.codes_of(x, factors.bases, temperature=self.temperature, constant_norms=self.constant_norms)
