"""Linear algebra that hams and kernels share: unit columns, and the ridge projector of CD."""

from __future__ import annotations

import torch
from torch import Tensor

# Added to a sum or a norm that may be zero: an empty cluster becomes the zero column, in every dtype.
EPS = 1e-6


def normalize_columns(bases: Tensor) -> Tensor:
    """Scale every column to unit L2 length; a zero column stays zero.   b d r   ->   b d r"""
    return torch.nn.functional.normalize(bases, dim=1, eps=EPS)


def ridge_projector(bases: Tensor, beta: float) -> Tensor:
    """(D^T D + beta I)^-1 D^T.   bases: b d r   ->   b r d"""
    if beta == 0:
        return torch.linalg.pinv(bases)  # equal columns and empty clusters make D^T D singular
    gram = bases.mT @ bases
    gram = gram + beta * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    if torch.onnx.is_in_onnx_export():
        return solve_by_products(gram, bases.mT)  # ONNX has no linear solve
    # solve_ex neither raises on NaN nor synchronises with the GPU to check for success
    return torch.linalg.solve_ex(gram, bases.mT)[0]


def solve_by_products(a: Tensor, b: Tensor) -> Tensor:
    """Solve a x = b with matrix products only, for graph formats without a linear solve.

    a: b r r, symmetric positive definite   b: b r d   ->   b r d

    The approximate inverse alone loses digits to the condition number; one refinement step recovers them.
    """
    inverse = newton_schulz_inverse(a)
    x = inverse @ b
    return x + inverse @ (b - a @ x)


def newton_schulz_inverse(a: Tensor, iterations: int = 24) -> Tensor:
    """Approximate inverse of symmetric positive definite matrices: Z <- Z (2I - A Z).   a: b r r   ->   b r r

    Every iteration squares the error once it is below 1; 24 are enough for condition numbers up to about 1e6.
    """
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    # the largest row sum bounds every eigenvalue of a symmetric matrix, so I - a x starts as a contraction
    x = identity / a.abs().sum(dim=-1, keepdim=True).amax(dim=-2, keepdim=True)
    for _ in range(iterations):
        x = x @ (2 * identity - a @ x)
    return x
