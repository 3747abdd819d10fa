"""Means over the cells of a grid, and a grid laid over a map: how every pyramid begins and ends."""

from __future__ import annotations

import torch
from torch import Tensor


def grid_mean(x: Tensor, size: int) -> Tensor:
    """Adaptive average pooling to size x size, as two products.   b c h w   ->   b c size size

    The same cells as torch's own pooling, overlapping where `size` does not divide h or w. Its ONNX export is right
    only for the size it was traced with, and its CUDA gradient adds in no fixed order; a product has neither trouble.
    """
    if size == 1:
        return x.mean((2, 3), keepdim=True)
    return _cells(size, x.shape[2], x) @ (x @ _cells(size, x.shape[3], x).mT)


def _cells(size: int, length: int, like: Tensor) -> Tensor:
    """Row i averages positions floor(i length / size) up to ceil((i + 1) length / size).   ->   size length"""
    cell = torch.arange(size, device=like.device)[:, None]
    position = torch.arange(length, device=like.device)
    first, end = cell * length // size, ((cell + 1) * length + size - 1) // size
    inside = ((position >= first) & (position < end)).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


def grid_resize(x: Tensor, like: Tensor) -> Tensor:
    """A small grid laid over a map, bilinear with aligned corners, as two products.   b c s s, b c h w   ->   b c h w

    The values of torch's own interpolation. Its CUDA gradient adds h w values into s s cells one after another, which
    takes longer than everything else in a pyramid; a product adds them as a tree.
    """
    rows, columns = (_weights(x.shape[axis], like.shape[axis], x) for axis in (2, 3))
    return rows @ x @ columns.mT


def _weights(size: int, length: int, like: Tensor) -> Tensor:
    """Row i holds the weights of the cells at position i (size - 1) / (length - 1).   ->   length size"""
    at = torch.arange(length, device=like.device, dtype=torch.float64) * ((size - 1) / max(length - 1, 1))
    cells = torch.arange(size, device=like.device, dtype=torch.float64)
    return (1 - (at[:, None] - cells).abs()).clamp_min(0).to(like.dtype)
