"""The ridge projector of CD by a kernel of our own, where the one-launch form's inverse will do: see `wave.fits`."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops.start import start
from hamburger.ops.stream import Stream
from hamburger.ops.tiles import cdiv


def projector(centroids: Tensor, beta: float, cut: Stream) -> tuple[Tensor, Tensor]:
    """b d r   ->   the same with columns of unit length,  their projector (D^T D + beta I)^-1 D^T, transposed: b d r"""
    from hamburger.ops.cd.ridge_kernels import ridge_kernel

    b, d, r = centroids.shape
    bases, found = torch.empty_like(centroids), torch.empty_like(centroids)
    start(ridge_kernel, (cdiv(d, 64), b), centroids, bases, found, d, r, beta, D=cut.D, R=cut.R, num_warps=8)
    return bases, found
