"""NMF with learned step sizes: over-relaxed multiplicative updates.

A multiplicative update moves every entry c to the minimum c q of a parabola that lies above the objective and touches
it at c (see nmf.py), where q is the ratio of NMF, such as (D^T X) / (D^T D C). Relaxation w moves it w times as far:

    c <- c max(1 - w + w q, q / 10)

1 - w + w q keeps the fraction (1 - w)^2 of the parabola's height above its minimum, so for 0 < w < 2 no half-step
raises the objective (eps = 0), as for w = 1, which is NMF. The bound q / 10 keeps entries positive where w > 1 would
overshoot below zero. Where it applies it is the nearer of the two to the minimum, so the guarantee stays.

Every half-step has its own w = 2 sigmoid(p), and p is trained through the solve with the network: a learned optimiser
in the sense of Gregor & LeCun (2010), with 2K + 1 numbers for K steps and the read-out. p = 0 is NMF.

Cost: that of NMF. A gradient that keeps m steps trains the step sizes of those m steps and of the read-out. A fixed
point of the steps does not depend on step sizes, so the implicit gradient would not train them, and raises.

Sources: K. Gregor and Y. LeCun, "Learning fast approximations of sparse coding", ICML 2010; D. Lee and H. Seung,
"Algorithms for non-negative matrix factorization", NeurIPS 2001, for the parabola. The relaxation is ours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from hamburger.errors import OptionError, ShapeError, check_positive
from hamburger.hams.base import Factors, hams, product
from hamburger.hams.nmf import NMF
from hamburger.tensors import check_shapes

MOST = 2.0  # from this relaxation on, a step may raise the objective


@hams.register("learned")
@dataclass(frozen=True)
class Learned(NMF):
    """NMF whose step sizes are parameters of the layer, trained by back-propagation through its steps.

    >>> out = hb.decompose(x.relu(), hb.Learned(rank=4, relaxation=1.5), steps=6)
    >>> layer = hb.Hamburger(64, ham=hb.Learned(rank=8), grad="truncated:2")

    - `relaxation`: above 0 and below 2; where training starts, and what `hb.decompose` uses. 1 is `NMF`.
    - `weights`: the numbers p above: 2K + 1, of codes and bases in each step, then of the read-out. Steps after the
      K-th use the last number. A layer trains a copy of its own.
    - `taken`: how many steps came before the next one.
    - the others are those of `NMF`.
    """

    relaxation: float = 1.0
    trainable: ClassVar[bool] = True

    weights: Tensor | None = field(default=None, repr=False, compare=False)
    taken: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Learned", "relaxation", self.relaxation)
        if self.relaxation >= MOST:
            raise OptionError(f"Learned: relaxation must be below {MOST:g}, got {self.relaxation}; steps would diverge")
        if self.weights is not None and (self.weights.dim() != 1 or self.weights.shape[0] % 2 == 0):
            shape = tuple(self.weights.shape)
            raise ShapeError(f"Learned: weights must be 2 K + 1 numbers for K steps, got a tensor of {shape}")

    def initial_parameters(self, steps: int) -> dict[str, Tensor]:
        if self.weights is None:
            return {"relaxation": torch.full((2 * steps + 1,), math.log(self.relaxation / (MOST - self.relaxation)))}
        if self.weights.shape[0] != 2 * steps + 1:
            raise ShapeError(
                f"Learned: a layer of {steps} steps needs {2 * steps + 1} weights, got {self.weights.shape[0]}; leave "
                "them out to start from `relaxation`"
            )
        return {"relaxation": self.weights.detach().clone()}

    def bind(self, parameters: Mapping[str, Tensor]) -> Learned:
        return dataclasses.replace(self, weights=parameters["relaxation"])

    def after(self, steps: int) -> Learned:
        return dataclasses.replace(self, taken=self.taken + steps)

    def step(self, x: Tensor, factors: Factors) -> Factors:
        codes = self._update_codes(x, factors, 2 * self.taken)
        xc, cc = self.sum_positions(x, codes)
        return Factors(self._relax(factors.bases, xc, product(factors.bases, cc), 2 * self.taken + 1), codes)

    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        if self.final_update:
            return self._update_codes(x, factors, -1)
        assert factors.codes is not None
        return factors.codes

    def _update_codes(self, x: Tensor, factors: Factors, index: int) -> Tensor:
        bases, codes = factors
        assert codes is not None
        check_shapes("Learned", x=(x, "b d n"), bases=(bases, "b d r"), codes=(codes, "b r n"))
        rows = codes.mT
        return self._relax(rows, product(x.mT, bases), product(rows, product(bases.mT, bases)), index).mT

    def _relax(self, factor: Tensor, numerator: Tensor, denominator: Tensor, index: int) -> Tensor:
        """The factor after a half-step with the relaxation of that index."""
        w: float | Tensor = self.relaxation
        if self.weights is not None:
            w = MOST * self.weights[min(index, self.weights.shape[0] - 1)].to(factor.dtype).sigmoid()
        ratio = numerator / (denominator + self.eps)
        return factor * torch.maximum(1 - w + w * ratio, ratio / 10)
