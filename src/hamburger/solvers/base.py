"""A decomposition as a value: hyper-parameters as fields, and three methods - init, step, read-out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from hamburger.errors import check_count
from hamburger.ops import cosine
from hamburger.registry import Registry


class Factors(NamedTuple):
    """The state that sweeps pass on. A ham that rebuilds its codes from the bases carries none."""

    bases: Tensor  # b d r, the paper's D
    codes: Tensor | None = None  # b r n, the paper's C


@dataclass(frozen=True)
class Ham(ABC):
    """Base of all hams: X (b d n) ~ D C. It holds no tensors and knows nothing of heads, images or gradients.

    A new one writes `step` and `readout`, and `init` if its sweeps start from codes. `nonnegative` hams need x >= 0
    and start from bases >= 0; in `scale_free` hams (D S, S^-1 C) is as good an answer as (D, C).
    """

    rank: int = 64

    nonnegative: ClassVar[bool] = False
    scale_free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_count(type(self).__name__, "rank", self.rank, least=1)

    def check(self, d: int, n: int) -> None:  # noqa: B027 - most hams have nothing to object to
        """Raise where the maths does not allow this rank for a d x n matrix."""

    def draw(self, b: int, d: int, *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Random bases with unit columns: uniform(0, 1) where non-negative, else normal.   ->   b d r"""
        return cosine.normalize(self.sample(b, d, like=like, generator=generator))

    def sample(self, b: int, d: int, *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """What `draw` normalises.   ->   b d r"""
        uniform_or_normal = torch.rand if self.nonnegative else torch.randn
        # a generator lives on one device; what it draws may be wanted on another
        device = like.device if generator is None else generator.device
        return uniform_or_normal(b, d, self.rank, generator=generator, dtype=like.dtype, device=device).to(like.device)

    def init(self, x: Tensor, bases: Tensor | None = None, generator: torch.Generator | None = None) -> Factors:
        """Start from the given bases, or from random ones.   x: b d n   bases: b d r"""
        return Factors(self.draw(x.shape[0], x.shape[1], like=x, generator=generator) if bases is None else bases)

    @abstractmethod
    def step(self, x: Tensor, factors: Factors) -> Factors:
        """One full sweep."""

    @abstractmethod
    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        """The codes of x under the bases found.   ->   b r n"""

    def solve(self, x: Tensor, factors: Factors, steps: int) -> Factors:
        """K sweeps. Hams override it to share work between sweeps; the value is that of K calls of `step`."""
        for _ in range(steps):
            factors = self.step(x, factors)
        return factors


hams: Registry[Ham] = Registry("ham")
