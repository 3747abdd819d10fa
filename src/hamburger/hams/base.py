"""The base class of hams: a decomposition as a frozen value with the methods init, step and readout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from hamburger.errors import InputError, OptionError, check_count
from hamburger.kernels.dispatch import FusedSpec
from hamburger.linalg import EPS
from hamburger.registry import Registry
from hamburger.tensors import widen

Columns = Literal["columns"]
COLUMNS: Columns = "columns"  # in place of a tensor of bases: columns of X
# What a non-negative ham adds to the unit columns it starts from, relative to their root mean square. Multiplicative
# updates cannot leave zero: without it, the zeros of a ReLU would stay in the bases, and a zero column a dead basis.
FLOOR = 0.1


class Factors(NamedTuple):
    """The state between steps. A ham that recomputes its codes from the bases carries none.

    >>> ham = hb.VQ(rank=4)
    >>> bases, codes = ham.step(x, ham.init(x))
    """

    bases: Tensor  # b d r, the paper's D
    codes: Tensor | None = None  # b r n, the paper's C


@dataclass(frozen=True)
class Ham(ABC):
    """Base of all hams: X (b d n) ~ D C. It holds no tensors and knows nothing of heads, images or gradients.

    A new ham defines `step` and `readout`, and `init` if its steps start from codes. In place of `step` it may define
    `update_codes`, `sum_positions` and `update_bases`: then its positions may be in several tiles or processes.
    `nonnegative` hams need x >= 0 and start from bases >= 0; in `scale_free` hams (D S, S^-1 C) is as good a solution
    as (D, C).

    >>> class Projection(hb.Ham):                      # with @hb.hams.register("projection") it also has a name
    ...     def step(self, x, factors):
    ...         return hb.Factors(torch.linalg.qr(x @ (x.mT @ factors.bases)).Q)
    ...     def readout(self, x, factors):
    ...         return factors.bases.mT @ x
    >>> out = hb.decompose(x, Projection(rank=4))
    """

    rank: int = 64

    nonnegative: ClassVar[bool] = False
    scale_free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_count(type(self).__name__, "rank", self.rank, least=1)

    @property
    def readout_updates(self) -> bool:
        """Whether `readout` computes new codes from x. If not, a one-step gradient has to keep the last step."""
        return True

    def check(self, d: int, n: int) -> None:  # noqa: B027 - most hams accept every size
        """Raise where the maths does not allow this rank for a d x n matrix."""

    def fused_spec(self) -> FusedSpec | None:
        """How the fused kernels solve this ham; None for a ham without a kernel, which plain torch solves."""
        return None

    def draw(self, b: int, d: int, *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Random bases with unit columns: uniform(0, 1) where non-negative, else normal.   ->   b d r"""
        return torch.nn.functional.normalize(self.sample(b, d, like=like, generator=generator), dim=1, eps=EPS)

    def sample(self, b: int, d: int, *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Random bases before `draw` normalises them.   ->   b d r"""
        uniform_or_normal = torch.rand if self.nonnegative else torch.randn
        # a generator belongs to one device; its numbers may be needed on another
        device = like.device if generator is None else generator.device
        return uniform_or_normal(b, d, self.rank, generator=generator, dtype=like.dtype, device=device).to(like.device)

    def select_columns(self, x: Tensor) -> Tensor:
        """Bases from columns of X that are spread over its positions: nothing random.   x: b d n   ->   b d r"""
        return self.bases_from_columns(x.index_select(2, spread_positions(x.shape[2], self.rank, x.device)))

    def bases_from_columns(self, columns: Tensor) -> Tensor:
        """Unit columns, positive in a non-negative ham.   b d r   ->   b d r"""
        unit = torch.nn.functional.normalize(widen(columns), dim=1, eps=EPS)
        if not self.nonnegative:
            return unit
        return torch.nn.functional.normalize(unit + FLOOR / columns.shape[1] ** 0.5, dim=1, eps=EPS)

    def init(self, x: Tensor, bases: Tensor | None = None, generator: torch.Generator | None = None) -> Factors:
        """Start from the given bases, or from random ones.   x: b d n   bases: b d r"""
        return Factors(self.draw(x.shape[0], x.shape[1], like=x, generator=generator) if bases is None else bases)

    def step(self, x: Tensor, factors: Factors) -> Factors:
        """Run one step: update the codes and, with the new codes, the bases."""
        codes = self.update_codes(x, factors)
        return Factors(self.update_bases(factors.bases, self.sum_positions(x, codes)), codes)

    @abstractmethod
    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        """The codes of x under the final bases.   ->   b r n"""

    def solve(self, x: Tensor, factors: Factors, steps: int) -> Factors:
        """Run K steps. Hams override it to share work between steps; the value is that of K calls of `step`."""
        for _ in range(steps):
            factors = self.step(x, factors)
            if not isinstance(factors, Factors):
                raise InputError(f"{type(self).__name__}.step must return Factors, got {type(factors).__name__}")
        return factors

    # Positions interact only through sums over them. If X is in parts, each part updates its codes, the sums of all
    # parts are added, and every part updates the bases alike.

    def update_codes(self, x: Tensor, factors: Factors) -> Tensor:
        """The codes after the next step, position by position.   x: b d n   ->   b r n"""
        raise self._no_parts()

    def sum_positions(self, x: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
        """Sums over positions; those of several parts are added.   x: b d n   codes: b r n   ->   for `update_bases`"""
        raise self._no_parts()

    def update_bases(self, bases: Tensor, sums: tuple[Tensor, ...]) -> Tensor:
        """The bases after the next step. May overwrite `sums`.   bases: b d r   ->   b d r"""
        raise self._no_parts()

    def check_parts(self) -> None:
        """Raise unless this ham says what its parts do: the methods above, and no other `step` or `solve`."""
        for kind in type(self).__mro__:
            if "update_codes" in vars(kind) and kind is not Ham:
                return
            if kind is Ham or "step" in vars(kind) or "solve" in vars(kind):
                raise self._no_parts()

    def _no_parts(self) -> OptionError:
        name = type(self).__name__
        return OptionError(
            f"{name} does not define update_codes, sum_positions and update_bases, without which it needs a step() and "
            "cannot decompose positions in parts; define them, or use NMF, VQ or CD"
        )


hams: Registry[Ham] = Registry("ham")


# -- positions of columns ----------------------------------------------------------------------------------------------

GOLDEN, TURN = 40503, 2**16  # their quotient is the golden section: multiples, modulo 1, fill every interval evenly


def spread_positions(n: int, r: int, device: torch.device) -> Tensor:
    """r of n positions in ascending order, one in each of r equal stretches; all differ if n >= r.   ->   r (int64)

    Position k is floor((k n + u_k (n - r)) / r), with u_k = k times the golden section, modulo 1. A constant stride
    would often be a multiple of the width of an image, and all columns would come from one vertical line of it.
    With n < r every position is repeated r / n times, rounded up or down.
    """
    k = torch.arange(r, device=device)
    offset = ((k * GOLDEN + TURN // 2) % TURN * (n - r)).clamp(min=0)  # no `if`: n may be symbolic in an exported graph
    return (k * (n * TURN) + offset) // (r * TURN)


# -- Weyl sequences ----------------------------------------------------------------------------------------------------
# Numbers that look uniform and are a pure function of their indices: equal on every device and in every call.


MODULUS = 2**24  # the integers that float32 holds exactly


def weyl_multipliers(r: int, seed: int = 0) -> list[list[int]]:
    """A multiplier and an offset below 2^24 for each of r sequences: two rows of r.

    Plain integers mixed by the splitmix64 finaliser: a generator object cannot be traced into an exported graph.
    """

    def mix(i: int) -> int:
        z = ((seed * 2 * r + i + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return (z ^ (z >> 31)) % MODULUS

    return [[mix(k) | 1 for k in range(r)], [mix(r + k) for k in range(r)]]  # odd multipliers have the full period


def weyl_uniform(multipliers: Tensor, n: int, *, dtype: torch.dtype) -> Tensor:
    """r sequences of length n, equidistributed on (0, 1).   multipliers: 2 r (int64)   ->   r n

    The Weyl sequence v = j a_k + b_k, then v (2 v + 1), which permutes the integers modulo a power of two and breaks
    the lattice that two Weyl sequences form together. Any n without a stored table, no random number generator in an
    exported graph, and integer arithmetic, so that two devices agree to the bit.
    """
    a, b = multipliers[:, :, None]
    v = (a * torch.arange(n, device=multipliers.device) + b).remainder(MODULUS)
    return ((v * (2 * v + 1)).remainder(MODULUS).to(dtype) + 0.5) / MODULUS
