"""Soft concept decomposition (the paper's Algorithm 3): the definition, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.ops import cosine
from hamburger.ops.cd.inverse import solve_by_products


def solve(x: Tensor, bases: Tensor, steps: int, temperature: float) -> Tensor:
    """`steps` sweeps of spherical k-means: assign every column, then take the mean direction of each cluster."""
    scale = cosine.inverse_norms(x)
    for _ in range(steps):
        codes = cosine.assign(x, scale, bases, temperature)
        bases = cosine.normalize(cosine.centroids(*cosine.sums_over_positions(x, codes)))
    return bases


def ridge_codes(x: Tensor, bases: Tensor, beta: float) -> Tensor:
    """(D^T D + beta I)^-1 D^T X.   x: b d n   bases: b d r   ->   b r n"""
    # Solve for the r x d projector, not for r x n codes: the triangular solves then do not grow with n.
    return projector(bases, beta) @ x


def projector(bases: Tensor, beta: float) -> Tensor:
    """(D^T D + beta I)^-1 D^T.   bases: b d r   ->   b r d"""
    if beta == 0:
        return torch.linalg.pinv(bases)  # concepts that coincide, or that nobody chose, leave D^T D singular
    gram = bases.mT @ bases
    gram = gram + beta * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    if torch.onnx.is_in_onnx_export():
        return solve_by_products(gram, bases.mT)  # ONNX has no linear solve
    # the _ex form neither raises on NaN nor waits for the GPU to say that all went well
    return torch.linalg.solve_ex(gram, bases.mT)[0]
