"""NMF by hierarchical alternating least squares: HALS (Cichocki & Phan, 2009).

The problem is that of NMF: minimise 1/2 |X - D C|^2 over D, C >= 0. HALS solves it for one row of C at a time, with all
else constant. In the row c_k the problem is a parabola for each position, whose minimum over c_k >= 0 is

    c_k <- max(0, c_k + (D^T X - D^T D C)_k / (D^T D)_kk)

The next row uses the new c_k: with S = D^T X - D^T D C, the change e of row k subtracts (D^T D)_jk e from every row j
of S. The columns of D follow in the same way from X C^T and C C^T. `eps` is added to the denominator. It shortens the
step towards the minimum of the parabola, so no half-step raises the objective for any eps >= 0, and a dead row stays
finite. In contrast to multiplicative updates, a zero can become positive again, and entries reach zero exactly.

Cost of one step in multiply-adds: n d r each for D^T X and X C^T, and 5/2 r^2 (n + d) for the products with r x r
matrices, of which multiplicative updates need 2 r^2 (n + d). The r rows follow one another, so a half-step is r small
operations instead of one product: on a GPU, many dependent launches. The graph of K steps has r times as many nodes.

Source: A. Cichocki and A.-H. Phan, "Fast local algorithms for large scale nonnegative matrix and tensor
factorizations", IEICE Transactions 2009. They also scale D to unit columns after each step; here the scale is free.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hamburger.hams.base import Factors, hams, product
from hamburger.hams.nmf import NMF
from hamburger.tensors import check_shapes


@hams.register("hals")
@dataclass(frozen=True)
class HALS(NMF):
    """NMF by coordinate descent, one atom after another: a lower error than "nmf" after the same steps.

    >>> out = hb.decompose(x.relu(), hb.HALS(rank=4), steps=2)
    >>> layer = hb.Hamburger(64, ham=hb.HALS(rank=8))                   # the same as ham="hals", rank=8

    The options are those of `NMF`. Unlike there, a zero row or column stays finite with `eps=0`.
    """

    def update_codes(self, x: Tensor, factors: Factors) -> Tensor:
        bases, codes = factors
        assert codes is not None
        check_shapes("HALS", x=(x, "b d n"), bases=(bases, "b d r"), codes=(codes, "b r n"))
        return descend(codes, product(bases.mT, x), product(bases.mT, bases), self.eps)

    def update_bases(self, bases: Tensor, sums: tuple[Tensor, ...]) -> Tensor:
        xc, cc = sums
        return descend(bases.mT, xc.mT, cc, self.eps).mT


def descend(rows: Tensor, target: Tensor, gram: Tensor, eps: float) -> Tensor:
    """Return the rows after moving each in turn to its best value >= 0, with all others constant.

    rows, target: b r n   gram: b r r   ->   b r n
    """
    slope = target - product(gram, rows)  # of the objective, negative, for the rows from k on
    # with eps=0 a dead row, whose slope is zero, still needs something to divide by
    scale = 1 / (gram.diagonal(dim1=1, dim2=2) + (eps or torch.finfo(gram.dtype).tiny))  # b r
    updated = []
    for k in range(rows.shape[1]):
        old = rows[:, k, None]
        new = (old + slope[:, :1] * scale[:, k, None, None]).relu()
        slope = torch.baddbmm(slope[:, 1:], gram[:, k + 1 :, k, None], old - new)
        updated.append(new)
    return torch.cat(updated, dim=1)
