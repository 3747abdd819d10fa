"""NMF with a dictionary for each window of the grid, and one for all: X_w ~ [D_0 D_w] C_w in the window w.

Of the r bases of a position, the first g = rank - local_rank are the global D_0, the others those of its window.
Minimise f = sum over windows of 1/2 |X_w - [D_0 D_w] C_w|^2 over factors >= 0. With E_w = [D_0 D_w], one step is

    C_w <- C_w * (E_w^T X_w) / (E_w^T E_w C_w)          for every window
    D_w <- D_w * (X_w C_w^T) / (E_w C_w C_w^T)           on the last columns
    D_0 <- D_0 * (sum_w X_w C_w^T) / (sum_w E_w C_w C_w^T)   on the first columns

f is quadratic in all bases together with non-negative coefficients, so these are NMF's multiplicative updates, and
none raises f (for eps = 0). All windows start from the same local bases, the last columns of the initial dictionary.

Where the window does not divide the grid, the last windows are filled up with zeros. A column of zeros has codes of
zero after one update, so it adds nothing to any sum, and the factors are those of smaller windows.

The result is a matrix D = [D_0 D_1 ... D_m] of g + m local_rank columns, and codes whose local rows are zero outside
their window. D C is computed window by window. Only `decompose` makes these codes: with small windows on a large map
they are much larger than X, and a layer does not need them.

Cost of one step in multiply-adds: 2 n d r for the products with X, 2 n r^2, and 2 m d r^2 for m windows. Small windows
are therefore slower: at r = 64 the last term exceeds the first below 64 positions.

Source: the paper's Appendix I asks for hierarchically low-rank decompositions; the ham is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import OptionError, check_count
from hamburger.hams.base import Factors, hams, product
from hamburger.hams.grid import GridNMF
from hamburger.hams.nmf import multiply
from hamburger.tensors import check_shapes, is_exporting


@hams.register("windowed")
@dataclass(frozen=True)
class Windowed(GridNMF):
    """NMF in which some bases are common to all positions and the others belong to a window of the grid.

    >>> out = hb.decompose(x.relu(), hb.Windowed(rank=4, window=2), grid=(4, 5))
    >>> layer = hb.Hamburger(64, ham=hb.Windowed(rank=8))               # the same as ham="windowed", rank=8

    - `window`: its side, in positions.
    - `local_rank`: how many of the `rank` bases of a position belong to its window; by default a quarter.
    - `grid`: the shape of the positions, where they arrive as a line. A layer sets it for maps and volumes, and
      `hb.decompose` takes it as a keyword.
    - the others are those of `NMF`.
    """

    window: int = 16
    local_rank: int | None = None

    scale_free: ClassVar[bool] = False  # not with one scale for each basis: the local ones have one for each window
    growing_bases: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("Windowed", "window", self.window, least=1)
        if self.local_rank is not None:
            check_count("Windowed", "local_rank", self.local_rank, least=0)
            if self.local_rank >= self.rank:
                raise OptionError(
                    f"Windowed: local_rank must be below the rank {self.rank}, which counts the global bases too, got "
                    f"{self.local_rank}; lower it or raise the rank"
                )

    @property
    def global_rank(self) -> int:
        return self.rank - (self.rank // 4 if self.local_rank is None else self.local_rank)

    def init(self, x: Tensor, bases: Tensor | None = None, generator: torch.Generator | None = None) -> Factors:
        first, codes = super().init(x, bases, generator)
        local = first[:, :, self.global_rank :].repeat(1, 1, math.prod(self._counts(x.shape[2])))
        return Factors(torch.cat([first[:, :, : self.global_rank], local], dim=2), codes)

    def step(self, x: Tensor, factors: Factors) -> Factors:
        return self.solve(x, factors, 1)

    def solve(self, x: Tensor, factors: Factors, steps: int) -> Factors:
        if steps == 0:
            return factors
        n, g = x.shape[2], self.global_rank
        x, bases, codes = self._split_all(x, factors)
        m = math.prod(self._counts(n))
        for _ in range(steps):
            codes = self._update(x, bases, codes)
            xc = product(x, codes.mT).unflatten(0, (-1, m))
            dcc = product(bases, product(codes, codes.mT)).unflatten(0, (-1, m))
            old = bases.unflatten(0, (-1, m))
            sums = [each[..., :g].sum(1, keepdim=True) for each in (xc, dcc)]
            shared = self._multiply(old[:, :1, :, :g], *sums).expand(-1, m, -1, -1)
            local = self._multiply(old[..., g:], xc[..., g:], dcc[..., g:])
            bases = torch.cat([shared, local], dim=3).flatten(0, 1)
        final = bases.unflatten(0, (-1, m))
        local = final[..., g:].permute(0, 2, 1, 3).flatten(2)
        return Factors(torch.cat([final[:, 0, :, :g], local], dim=2), self._join(codes, n))

    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        return self.expand_codes(self.finish(x, factors)[1])

    def finish(self, x: Tensor, factors: Factors) -> tuple[Tensor, Tensor, Tensor]:
        n = x.shape[2]
        x, bases, codes = self._split_all(x, factors)
        if self.final_update:
            codes = self._update(x, bases, codes)
        return factors.bases, self._join(codes, n), self._join(product(bases, codes), n)

    def objective(self, x: Tensor, factors: Factors) -> Tensor:
        """f above, for factors between steps or after them; no step raises it if eps is 0.   ->   b"""
        assert factors.codes is not None
        if factors.codes.shape[1] == factors.bases.shape[2]:
            return super().objective(x, factors)
        samples = x.shape[0]
        x, bases, codes = self._split_all(x, factors)
        return (x - product(bases, codes)).square().unflatten(0, (samples, -1)).sum((1, 2, 3)) / 2

    def _update(self, x: Tensor, bases: Tensor, codes: Tensor) -> Tensor:
        return self._multiply(codes, product(bases.mT, x), product(product(bases.mT, bases), codes))

    def _multiply(self, factor: Tensor, numerator: Tensor, denominator: Tensor) -> Tensor:
        # with eps=0 the zeros that fill up the last windows would be 0 / 0
        return multiply(factor, numerator, denominator, self.eps or torch.finfo(factor.dtype).tiny)

    # -- windows -------------------------------------------------------------------------------------------------------

    def _sides(self, n: int) -> list[int]:
        """The sides of a window. In a graph of dynamic size none is cut to a smaller grid, which changes no value."""
        return [self.window if is_exporting() else min(self.window, size) for size in self.shape(n)]

    def _counts(self, n: int) -> list[int]:
        """How many windows there are along each axis."""
        return [(size + side - 1) // side for size, side in zip(self.shape(n), self._sides(n), strict=True)]

    def _split(self, x: Tensor) -> Tensor:
        """Positions in windows.   b k n   ->   (b m) k p"""
        n, k = x.shape[2], x.shape[1]
        sides, counts = self._sides(n), self._counts(n)
        pad = [p for size, side, m in zip(self.shape(n), sides, counts, strict=True) for p in (m * side - size, 0)]
        maps = F.pad(x.unflatten(2, self.shape(n)), pad[::-1])
        blocks = maps.reshape(x.shape[0], k, *(each for pair in zip(counts, sides, strict=True) for each in pair))
        windows, within = range(2, blocks.dim(), 2), range(3, blocks.dim(), 2)
        return blocks.permute(0, *windows, 1, *within).reshape(-1, k, math.prod(sides))

    def _join(self, x: Tensor, n: int) -> Tensor:
        """The inverse of `_split`.   (b m) k p   ->   b k n"""
        sides, counts, k, axes = self._sides(n), self._counts(n), x.shape[1], len(self.shape(n))
        blocks = x.reshape(-1, *counts, k, *sides)
        order = [axis for i in range(axes) for axis in (1 + i, 2 + axes + i)]
        maps = blocks.permute(0, 1 + axes, *order).reshape(
            -1, k, *(m * side for m, side in zip(counts, sides, strict=True))
        )
        for axis, size in enumerate(self.shape(n)):
            maps = maps.narrow(2 + axis, 0, size)
        return maps.flatten(2)

    def _split_all(self, x: Tensor, factors: Factors) -> tuple[Tensor, Tensor, Tensor]:
        """X, [D_0 D_w] and C in windows.   ->   (b m) d p, (b m) d r, (b m) r p"""
        bases, codes = factors
        assert codes is not None
        check_shapes("Windowed", x=(x, "b d n"), codes=(codes, "b r n"))
        check_shapes("Windowed", x=(x, "b d n"), bases=(bases, "b d r"))
        m, g = math.prod(self._counts(x.shape[2])), self.global_rank
        shared = bases[:, None, :, :g].expand(-1, m, -1, -1)
        local = bases[:, :, g:].unflatten(2, (m, self.rank - g)).permute(0, 2, 1, 3)
        return self._split(x), torch.cat([shared, local], dim=3).flatten(0, 1), self._split(codes)

    def expand_codes(self, codes: Tensor) -> Tensor:
        """Codes with a row for every local basis, zero outside its window.   b r n   ->   b (g + m local_rank) n"""
        n, g = codes.shape[2], self.global_rank
        m = math.prod(self._counts(n))
        index = torch.arange(m, device=codes.device).view(1, m, 1, 1).expand(1, m, 1, math.prod(self._sides(n)))
        index = self._join(index.reshape(m, 1, -1), n)  # the window of each position: 1 1 n
        inside = index == torch.arange(m, device=codes.device).view(m, 1, 1)  # m 1 n
        local = (codes[:, None, g:] * inside[None].to(codes.dtype)).flatten(1, 2)
        return torch.cat([codes[:, :g], local], dim=1)
