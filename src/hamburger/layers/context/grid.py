"""Means over the cells of a grid, and a grid laid over a map: how every pyramid begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def grid_mean(x: Tensor, size: int) -> Tensor:
    """Adaptive average pooling to size x size, as two products.   b c h w   ->   b c size size

    The same cells as torch's own pooling, overlapping where `size` does not divide h or w. Its ONNX export is right
    only for the size it was traced with, and its CUDA gradient adds in no fixed order; a product has neither trouble.
    """
    if size == 1:
        return x.mean((2, 3), keepdim=True)
    (rows, per_row), (columns, per_column) = (_made(_cells, size, x.shape[axis], x) for axis in (2, 3))
    # sums of ones and zeros first, which are exact in any precision, then one division
    return rows @ (x @ columns.mT) / (per_row * per_column.mT).to(x.dtype)


def _cells(size: int, length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row i has ones from floor(i length / size) up to ceil((i + 1) length / size).   ->   size length, size 1"""
    cell = torch.arange(size, device=device)[:, None]
    position = torch.arange(length, device=device)
    first, end = cell * length // size, ((cell + 1) * length + size - 1) // size
    inside = (position >= first) & (position < end)
    return inside.to(dtype), inside.sum(1, keepdim=True).to(torch.float32)


def _made(make: Callable[..., Any], size: int, length: int, like: Tensor) -> Any:
    """The matrices of one grid and one length: made once, and not at every call by a dozen small launches."""
    if torch.compiler.is_compiling():  # a graph has them as constants, or makes them for sizes known at run time
        return make(size, length, like.dtype, like.device)
    return _kept(make, size, length, like.dtype, like.device)


@lru_cache(maxsize=256)
def _kept(make: Callable[..., Any], size: int, length: int, dtype: torch.dtype, device: torch.device) -> Any:
    with torch.inference_mode(False):  # else what a first call under inference_mode keeps could not be trained with
        return make(size, length, dtype, device)


def grid_resize(x: Tensor, size: Sequence[int]) -> Tensor:
    """Bilinear resize with aligned corners, as two matrix products.   b c s t   ->   b c *size

    The values of torch's own interpolation. Its CUDA gradient adds h w values into s s cells one after another, which
    takes longer than everything else in a pyramid; a product adds them as a tree.
    """
    rows, columns = (_made(_weights, x.shape[axis], length, x) for axis, length in zip((2, 3), size, strict=True))
    return rows @ x @ columns.mT


def _weights(size: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Row i holds the weights of the cells at position i (size - 1) / (length - 1).   ->   length size"""
    # whole numbers until the last division: position i lies i (size - 1) steps of 1 / (length - 1) from the first cell
    steps = max(length - 1, 1)
    at = torch.arange(length, device=device)[:, None] * (size - 1)
    away = (at - torch.arange(size, device=device) * steps).abs()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return ((steps - away).clamp_min(0).to(wide) / steps).to(dtype)
