"""NMF whose codes are smooth on the grid of positions: graph-regularised NMF.

Neighbours i ~ j on the grid have an edge of weight w = 1 / (2 axes), so a position inside has a degree of 1. Minimise

    f(D, C) = 1/2 |X - D C|^2 + a/2 sum_k |d_k|^2 c_k L c_k^T        over D, C >= 0

where L = G - A, with the degrees G and the adjacency A, so that c_k L c_k^T = sum over edges of w (c_ki - c_kj)^2. The
factor |d_k|^2 makes f depend on the atom d_k c_k alone. Without it, as in Cai et al., scale moves from C to D, which
lowers the penalty at will and changes nothing else. So (D S, S^-1 C) is as good a solution, as in NMF.

Multiplicative updates split the gradient of a quadratic c^T Q c / 2 - b^T c into c -> c (b + Q_- c) / (Q_+ c) with
Q = Q_+ - Q_-. It minimises a parabola above f, and hence does not raise f, if diag(Q_+ c / c) - Q is positive
semidefinite. With L = 2 G - (G + A) it is, since G + A is: c (G + A) c^T = sum over edges of w (c_i + c_j)^2. The usual
split G - A has no such guarantee on a grid, where A has an eigenvalue near -1: the update may flip a checkerboard. So

    C <- C * (D^T X + a s C (G + A)) / (D^T D C + 2 a s C G)        s = diag(|d_1|^2, ..., |d_r|^2)
    D <- D * (X C^T) / (D (C C^T + a diag(c_k L c_k^T)))

Cost of one step in multiply-adds: that of NMF, and about 6 n r additions for each axis.

Source: D. Cai, X. He, J. Han and T. Huang, "Graph regularized nonnegative matrix factorization for data
representation", TPAMI 2011; the factor |d_k|^2 and the split are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import check_positive
from hamburger.hams.base import Factors, hams, product
from hamburger.hams.grid import GridNMF
from hamburger.hams.nmf import multiply
from hamburger.tensors import check_shapes


@hams.register("local")
@dataclass(frozen=True)
class Local(GridNMF):
    """NMF in which neighbours have similar codes. Positions are on a line, in a map or in a volume.

    >>> out = hb.decompose(x.relu(), hb.Local(rank=4, smoothness=2.0), grid=(4, 5))
    >>> layer = hb.Hamburger(64, ham=hb.Local(rank=8))                  # the same as ham="local", rank=8

    - `smoothness`: the a above. At 1 the neighbours of a position weigh as much as its own column of X.
    - `grid`: the shape of the positions, where they arrive as a line. A layer sets it for maps and volumes, and
      `hb.decompose` takes it as a keyword.
    - the others are those of `NMF`.
    """

    smoothness: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Local", "smoothness", self.smoothness, zero=True)

    def update_codes(self, x: Tensor, factors: Factors) -> Tensor:
        bases, codes = factors
        assert codes is not None
        check_shapes("Local", x=(x, "b d n"), bases=(bases, "b d r"), codes=(codes, "b r n"))
        rows, grid = codes.mT, self.shape(x.shape[2])
        weight = self._edge_weight(grid) * bases.square().sum(1, keepdim=True)  # b 1 r
        degrees = add_neighbours(x.new_ones(1, x.shape[2], 1), grid)  # twice those of the graph
        numerator = product(x.mT, bases) + weight * add_neighbours(rows, grid)
        denominator = product(rows, product(bases.mT, bases)) + weight * degrees * rows
        return multiply(rows, numerator, denominator, self.eps).mT

    def sum_positions(self, x: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
        xc, cc = super().sum_positions(x, codes)
        return xc, cc + torch.diag_embed(self._roughness(codes))

    def objective(self, x: Tensor, factors: Factors) -> Tensor:
        """f(D, C) above; no step raises it if eps is 0.   ->   b"""
        assert factors.codes is not None
        penalty = factors.bases.square().sum(1) * self._roughness(factors.codes)
        return super().objective(x, factors) + penalty.sum(1) / 2

    def _edge_weight(self, grid: tuple[int, ...]) -> float:
        return self.smoothness / (2 * len(grid))

    def _roughness(self, codes: Tensor) -> Tensor:
        """a c_k L c_k^T.   b r n   ->   b r"""
        grid = self.shape(codes.shape[2])
        rows = codes.mT.unflatten(1, grid)  # b *grid r
        axes = range(1, rows.dim() - 1)
        squares = [(upper - lower).square().flatten(1, -2).sum(1) for lower, upper in (pairs(rows, a) for a in axes)]
        return self._edge_weight(grid) * torch.stack(squares).sum(0)


def add_neighbours(rows: Tensor, grid: tuple[int, ...]) -> Tensor:
    """For each position the sum over its edges of both ends.   b n r   ->   b n r"""
    maps = rows.unflatten(1, grid)
    total = torch.zeros_like(maps)
    for axis in range(1, maps.dim() - 1):
        lower, upper = pairs(maps, axis)
        later = [0, 0] * (maps.dim() - 1 - axis)  # `pad` counts axes from the last one
        total = total + F.pad(lower + upper, [*later, 0, 1]) + F.pad(lower + upper, [*later, 1, 0])
    return total.flatten(1, -2)


def pairs(maps: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Both ends of the edges along one axis: all positions but the last, and all but the first."""
    count = maps.shape[axis] - 1
    return maps.narrow(axis, 0, count), maps.narrow(axis, 1, count)
