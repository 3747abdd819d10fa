"""Soft assignment by cosine similarity, shared by VQ and CD."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamburger.hams.base import product, project, softmax
from hamburger.linalg import EPS, normalize_columns
from hamburger.tensors import is_transformed, widen

# Rows of X that are squared at a time: few enough for the cache of a CPU core at usual image sizes.
ROWS = 32


def inverse_norms(x: Tensor) -> Tensor:
    """1 / |x_j| for each column, 0 for a zero column.   x: b d n   ->   b 1 n

    A zero column has no direction: its cosine is defined as 0, and so is its derivative.
    """
    squares = squared_norms(x)
    zero = squares < torch.finfo(x.dtype).tiny  # squares below that are lost anyway
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).rsqrt())


def squared_norms(x: Tensor) -> Tensor:
    """|x_j|^2 for each column.   x: b d n   ->   b 1 n"""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or is_transformed():
        return torch.linalg.vector_norm(x, dim=1, keepdim=True).square()
    norms: Tensor = _SquaredNorms.apply(x)
    return norms


class _SquaredNorms(torch.autograd.Function):
    """The CPU's norm walks down the columns, every entry in another cache line; adding up rows reads it as it lies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        squares = widen(x[:0]).new_zeros(x.shape[0], min(ROWS, x.shape[1]), x.shape[2])
        for rows in x.split(ROWS, dim=1):
            wide = widen(rows)
            squares[:, : rows.shape[1]].addcmul_(wide, wide)
        return squares.sum(dim=1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        [x] = ctx.saved_tensors
        return (2 * dy).to(x.dtype) * x


def assign(x: Tensor, scale: Tensor, bases: Tensor, temperature: float) -> Tensor:
    """softmax over r of cosine(D, X) / T.   x: b d n   scale = inverse_norms(x): b 1 n   bases: b d r   ->   b r n"""
    # The norms of X scale r x n similarities here rather than d x n entries of X: no normalised copy of X is made.
    # The softmax runs over r, so the codes lie n x r in memory, each position's in a row, behind a transposed view.
    return softmax(project(x, normalize_columns(bases)) * (scale / temperature).mT).mT


def sums_over_positions(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """X C^T and C 1, the only sums over positions.   x: b d n   codes: b r n   ->   b d r,  b 1 r"""
    return product(x, codes.mT), codes.sum(dim=2).unsqueeze(1)


def run_steps(x: Tensor, bases: Tensor, steps: int, temperature: float, *, unit: bool) -> tuple[Tensor, Tensor]:
    """Run `steps` >= 1 steps: assign every column, then move each basis to the mean of its columns, X C^T diag(C 1)^-1.

    x: b d n   bases: b d r   ->   bases: b d r, with columns of unit length if `unit` (zero where a cluster is empty),
    and the codes they are the means of: b r n
    """
    scale = inverse_norms(x)
    for _ in range(steps):
        codes = assign(x, scale, bases, temperature)
        bases = cluster_means(*sums_over_positions(x, codes), unit=unit)
    return bases, codes


def cluster_means(xc: Tensor, mass: Tensor, *, unit: bool) -> Tensor:
    """X C^T diag(C 1)^-1, with columns of unit length if `unit`.   xc: b d r   mass: b 1 r   ->   b d r"""
    means = xc / (mass + EPS)
    return normalize_columns(means) if unit else means
