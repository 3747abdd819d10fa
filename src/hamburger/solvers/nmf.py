"""NMF by multiplicative updates: Algorithm 2 of the paper (Lee & Seung, 2001)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hamburger.errors import check_choice, check_positive
from hamburger.ops import cosine, nmf
from hamburger.ops.weyl import weyl_multipliers, weyl_uniform
from hamburger.solvers.base import Factors, Ham, hams

CODES_INIT = ("softmax", "cosine", "uniform")


@hams.register("nmf")
@dataclass(frozen=True)
class NMF(Ham):
    """X ~ D C with D, C >= 0. Needs x >= 0, so the lower bread ends in a ReLU.

    `codes_init` makes the first codes: "softmax" over r of D^T X (the authors' code), "cosine" (the paper's text, at
    temperature 1), or "uniform" on (0, 1). `eps` is added to both denominators; with 0 a zero row or column gives NaN.
    """

    eps: float = 1e-6
    codes_init: str = "softmax"

    nonnegative: ClassVar[bool] = True
    scale_free: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("NMF", "eps", self.eps, zero=True)
        check_choice("NMF", "codes_init", self.codes_init, CODES_INIT)

    def init(self, x: Tensor, bases: Tensor | None = None, generator: torch.Generator | None = None) -> Factors:
        random = bases is None  # given bases make the whole call a function of its inputs
        bases = super().init(x, bases, generator).bases
        if self.codes_init == "softmax":
            codes = nmf.first_codes(x, bases)
        elif self.codes_init == "cosine":
            codes = cosine.assign(x, cosine.inverse_norms(x), bases, temperature=1.0)
        elif random:
            device = x.device if generator is None else generator.device
            shape = (x.shape[0], self.rank, x.shape[2])
            codes = torch.rand(shape, generator=generator, dtype=x.dtype, device=device).to(x.device)
        else:
            multipliers = torch.tensor(weyl_multipliers(self.rank), device=x.device)
            codes = weyl_uniform(multipliers, x.shape[2], dtype=x.dtype).expand(x.shape[0], -1, -1)
        return Factors(bases, codes)

    def step(self, x: Tensor, factors: Factors) -> Factors:
        return self.solve(x, factors, 1)

    def solve(self, x: Tensor, factors: Factors, steps: int) -> Factors:
        assert factors.codes is not None
        return Factors(*nmf.solve(x, factors.bases, factors.codes, steps=steps, eps=self.eps))

    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        assert factors.codes is not None
        return nmf.update_codes(x, factors.bases, factors.codes, eps=self.eps)
