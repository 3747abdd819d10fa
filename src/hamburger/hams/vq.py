"""Soft vector quantisation: Algorithm 1 of the paper (Gray & Neuhoff, 1998).

K-means with cosine similarity, softened so that it can be differentiated:

    C = softmax over r of cosine(D, X) / T        every column of C sums to 1
    D = X C^T diag(C 1)^-1                        every basis moves to the mean of its columns

T -> 0 gives hard assignments. The norms of X do not change during a solve, so they are computed once; they scale the
r x n similarities instead of the d x n entries of X, and no normalised copy of X is made. An empty cluster has mass
near 0; 1e-6 in the denominator makes it the zero column, whose cosine with everything is 0. The codes of a step are
computed from D alone, so the state between steps is D and no first codes are needed.

Cost in multiply-adds: per step n d r for D^T X and n d r for X C^T; read-out n d r and product n d r: n d r (2K + 2).
The authors' code computes unused first codes (n d r more) and normalises X in every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hamburger.errors import check_flag, check_positive
from hamburger.hams import cosine
from hamburger.hams.base import Factors, Ham, hams
from hamburger.kernels.dispatch import FusedSpec
from hamburger.tensors import check_shapes


@hams.register("vq")
@dataclass(frozen=True)
class VQ(Ham):
    """Each column of X becomes a soft mixture of r cluster means; temperature -> 0 is k-means by cosine.

    >>> out = hb.decompose(x, hb.VQ(rank=4, temperature=0.1), steps=6)
    >>> layer = hb.Hamburger(64, ham=hb.VQ(rank=8))                     # the same as ham="vq", rank=8

    The gradient of the read-out is that of the cosine, |x| included. The authors' code holds |x| constant there:
    `constant_norms=True` reproduces that. The value is the same.

    `final_update`: after the last step compute the codes once more for the final bases, as the authors' code does.
    False gives Algorithm 1 as printed: D_K C_K; the one-step gradient is then that of the last step (Eq. 13).
    """

    temperature: float = 0.01
    constant_norms: bool = False
    final_update: bool = True

    amplifies_rounding: ClassVar[bool] = True  # the softmax at a low temperature does, tenfold and more

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("VQ", "temperature", self.temperature)
        check_flag("VQ", "constant_norms", self.constant_norms)
        check_flag("VQ", "final_update", self.final_update)

    @property
    def readout_updates(self) -> bool:
        return self.final_update

    def fused_spec(self) -> FusedSpec | None:
        if type(self) is not VQ:  # a subclass may change any step
            return None
        unsupported = None
        if not self.final_update:
            unsupported = "the kernels end with a final update of the codes, which final_update=False leaves out"
        return FusedSpec("vq", (self.temperature, float(self.constant_norms)), self.rank, unsupported)

    def step(self, x: Tensor, factors: Factors) -> Factors:
        return self.solve(x, factors, 1)

    def solve(self, x: Tensor, factors: Factors, steps: int) -> Factors:
        if steps == 0:
            return factors
        check_shapes("VQ.solve", x=(x, "b d n"), bases=(factors.bases, "b d r"))
        bases, codes = cosine.run_steps(x, factors.bases, steps, self.temperature, unit=False)
        return Factors(bases) if self.final_update else Factors(bases, codes)

    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        if factors.codes is not None and not self.final_update:
            return factors.codes
        check_shapes("VQ.readout", x=(x, "b d n"), bases=(factors.bases, "b d r"))
        scale = cosine.inverse_norms(x.detach() if self.constant_norms else x)
        return cosine.assign(x, scale, factors.bases, self.temperature)

    def objective(self, x: Tensor, factors: Factors) -> Tensor:
        """|X - D C|^2 / 2. A step may raise it: the cosine chooses codes, and bases are weighted means.   ->   b"""
        return super().objective(x, factors)

    def update_codes(self, x: Tensor, factors: Factors) -> Tensor:
        return cosine.assign(x, cosine.inverse_norms(x), factors.bases, self.temperature)

    def sum_positions(self, x: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
        return cosine.sums_over_positions(x, codes)

    def update_bases(self, bases: Tensor, sums: tuple[Tensor, ...]) -> Tensor:
        xc, mass = sums
        return cosine.cluster_means(xc, mass, unit=False)
