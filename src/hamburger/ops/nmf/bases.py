"""The update of D from sums over positions, for all forms that take a launch of their own for it."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.nmf import kernels
from hamburger.ops.start import start
from hamburger.ops.tiles import Blocks, cdiv, power_of_two


def update(bases: Tensor, sums: Tensor, dtype: torch.dtype, t: Blocks, eps: float) -> Tensor:
    """bases: b d r   sums: b parts (d + r) r, X C^T above C C^T   ->   b d r   (dtype: of x)"""
    b, d, r = bases.shape
    new = torch.empty_like(bases)  # not in place: other programs still read the old rows
    most = power_of_two(sums.shape[1])
    start(
        # tiles of d on the first axis: the others end at 65,535, and d is all positions where channels are decomposed
        kernels.bases_kernel, (b * cdiv(d, t.FD), cdiv(r, t.FR)),
        bases, sums, new, d, r, sums.shape[1], eps,
        KIND=launch.kind_of_factors(dtype), FD=t.FD, FR=t.FR, FK=t.FK, FP=min(t.FP, most), FPK=min(t.FPK, most),
        num_warps=4,
    )  # fmt: skip
    return new
