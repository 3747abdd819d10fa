"""Robust NMF: X = D C + S with a sparse S, by block coordinate descent.

Minimise f(D, C, S) = 1/2 |X - D C - S|^2 + t |S|_1 over D, C >= 0 and any S, where |S|_1 is the sum of absolute values.
With D and C constant, every entry of S has a problem of its own, which the soft threshold of the residual solves:

    S = soft(X - D C, t) = sign(X - D C) max(|X - D C| - t, 0)

With S constant, D and C have NMF's problem for the matrix X - S = D C + (X - D C clipped to [-t, t]). It is
non-negative if X is: where the residual is below -t, X - S = D C - t > X. So multiplicative updates apply, and none of
the three blocks raises f (for eps = 0; see nmf.py). What remains of f under the best S is Huber's loss of X - D C: a
square up to t and a straight line beyond, so a few large entries of X move D and C little.

t is `threshold` times the root mean square of X, separately for each sample: the result scales with X.

Cost of one step in multiply-adds: that of NMF and n d r for D C, which X - S needs. With K steps, the first codes, the
read-out and the product at the end: n d r (3K + 4) + r^2 (n + d) (2K + 1). X - S is a second matrix of the size of X.

Sources: J. Wright et al., "Robust principal component analysis", NeurIPS 2009, for the sparse part; L. Zhang et al.,
"Robust non-negative matrix factorization", Frontiers of EEE in China 2011, for its combination with NMF.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hamburger.errors import check_choice, check_positive
from hamburger.hams.base import Factors, hams, product
from hamburger.hams.nmf import NMF

COMPONENTS = ("low-rank", "sparse")


@hams.register("robust")
@dataclass(frozen=True)
class Robust(NMF):
    """NMF of X without its outliers: X = D C + S, where few entries of S are not zero.

    >>> out = hb.decompose(x.relu(), hb.Robust(rank=4, threshold=0.5), steps=6)
    >>> layer = hb.Hamburger(64, ham=hb.Robust(rank=8))                 # the same as ham="robust", rank=8

    - `threshold`: residuals beyond it, in units of the root mean square of X, go to S.
    - `component`: what is returned as the reconstruction: "low-rank", D C, or "sparse", S.
    - the others are those of `NMF`.
    """

    threshold: float = 1.0
    component: str = "low-rank"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Robust", "threshold", self.threshold)
        check_choice("Robust", "component", self.component, COMPONENTS)

    def step(self, x: Tensor, factors: Factors) -> Factors:
        return super().step(self.remove_outliers(x, factors), factors)

    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        return super().readout(self.remove_outliers(x, factors) if self.final_update else x, factors)

    def finish(self, x: Tensor, factors: Factors) -> tuple[Tensor, Tensor, Tensor]:
        bases, codes, low_rank = super().finish(x, factors)
        if self.component == "low-rank":
            return bases, codes, low_rank
        return bases, codes, x - self.remove_outliers(x, Factors(bases, codes))

    def objective(self, x: Tensor, factors: Factors) -> Tensor:
        """|X - D C - S|^2 / 2 + t |S|_1 with the best S; no step raises it if eps is 0.   ->   b"""
        assert factors.codes is not None
        residual, t = x - product(factors.bases, factors.codes), self.find_threshold(x)
        clipped = clip(residual, t)
        return (clipped.square() / 2 + t * (residual - clipped).abs()).sum((1, 2))

    def find_threshold(self, x: Tensor) -> Tensor:
        """t for each sample.   x: b d n   ->   b 1 1"""
        # of a sample of zeros the root has no derivative: the smallest number is added
        return self.threshold * (x.square().mean((1, 2), keepdim=True) + torch.finfo(x.dtype).tiny).sqrt()

    def remove_outliers(self, x: Tensor, factors: Factors) -> Tensor:
        """X - S for the best S under these factors.   x: b d n   ->   b d n"""
        assert factors.codes is not None
        low_rank = product(factors.bases, factors.codes)
        return low_rank + clip(x - low_rank, self.find_threshold(x))


def clip(x: Tensor, t: Tensor) -> Tensor:
    """x limited to [-t, t].   x: b d n   t: b 1 1   ->   b d n"""
    return torch.minimum(torch.maximum(x, -t), t)
