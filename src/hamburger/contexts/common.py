"""The registry of context modules, and the building blocks that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import OptionError, ShapeError, check_count
from hamburger.layers.norm import BatchNorm2d
from hamburger.registry import Registry
from hamburger.tensors import HALF, check_tensor, full_precision, widen

contexts: Registry[nn.Module] = Registry("context")


def check_map(call: str, x: Tensor, channels: int) -> None:
    """Raise unless x is b c h w with that many channels: clearer than the error of the first convolution."""
    check_tensor(call, "the input", x)
    if x.dim() != 4 or x.shape[1] != channels:
        hint = f"; build it with channels={x.shape[1]}" if x.dim() == 4 else ""
        raise ShapeError(f"{call}: built for maps b c h w of {channels} channels, got {tuple(x.shape)}{hint}")


def check_counts(call: str, option: str, values: object, *, example: Sequence[int]) -> None:
    """Raise unless `values` is a list or tuple of at least one whole number above zero."""
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise OptionError(f"{call}: {option} must name at least one size, such as {tuple(example)}, got {values!r}")
    for value in values:
        check_count(call, f"each of the {option}", value, least=1)


def check_dropout(call: str, value: object) -> None:
    """Raise unless the value is a number of at least 0 and below 1."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and 0 <= value < 1):  # type: ignore[operator]
        raise OptionError(f"{call}: dropout must be a number of at least 0 and below 1, got {value!r}")


def conv(in_channels: int, out_channels: int, kernel: int = 1, *, bias: bool) -> nn.Conv2d:
    """Return a convolution that keeps the size of the map."""
    return nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=bias)


def conv_norm_relu(
    in_channels: int, out_channels: int, kernel: int = 1, *, bias: bool = False, relu: bool = True
) -> nn.Sequential:
    """Return convolution, batch norm and, unless relu=False, ReLU."""
    layers: list[nn.Module] = [conv(in_channels, out_channels, kernel, bias=bias), BatchNorm2d(out_channels)]
    return nn.Sequential(*layers, nn.ReLU()) if relu else nn.Sequential(*layers)


def resize(x: Tensor, like: Tensor) -> Tensor:
    """Resize bilinearly to the height and width of `like`, with align_corners as in the original networks."""
    if x.shape[2:] == like.shape[2:]:
        return x
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)


def softmax_float32(scores: Tensor, dim: int) -> Tensor:
    """Return the softmax, computed in float32: unscaled scores overflow half precision before normalisation."""
    if scores.dtype not in HALF:
        return scores.softmax(dim)
    return scores.softmax(dim, dtype=torch.float32).to(scores.dtype)  # converts while reading, in one pass


def attend_materialised(queries: Tensor, keys: Tensor, values: Tensor, *, scale: float, dropout: float = 0.0) -> Tensor:
    """Return softmax attention with its weights stored in memory.   ... n d, ... m d, ... m e   ->   ... n e"""
    weights = compute_attention_weights(queries, keys, scale=scale).to(values.dtype)
    return (F.dropout(weights, dropout) if dropout else weights) @ values


def compute_attention_weights(queries: Tensor, keys: Tensor, *, scale: float) -> Tensor:
    """Return the matrix A of softmax attention; its rows sum to 1.   ... n d, ... m d   ->   ... n m

    Queries are scaled before the product, so that unscaled scores do not overflow half precision. Without a scale, the
    scores are float32.
    """
    if scale == 1:
        with full_precision(queries.device.type):
            return (widen(queries) @ widen(keys).mT).softmax(dim=-1)
    return softmax_float32((queries * scale) @ keys.mT, dim=-1)


def fold_branches(branches: Sequence[Tensor], channels: int) -> Tensor:
    """Concatenate branches of d channels, split them into pieces of c, and average.   b d h w   ->   b c h w

    Works piece by piece where the widths allow, since concatenating would copy all branches.
    """
    width = branches[0].shape[1]
    pieces = len(branches) * width // channels
    if channels % width and width % channels:
        return torch.cat(list(branches), dim=1).unflatten(1, (pieces, channels)).mean(1)
    wide = [piece for y in branches for piece in y.split(min(channels, width), dim=1)]
    per = len(wide) // pieces  # how many narrow branches form one piece
    groups = [torch.cat(wide[i : i + per], dim=1) if per > 1 else wide[i] for i in range(0, len(wide), per)]
    total = groups[0]
    for piece in groups[1:]:
        total = total + piece
    return total / pieces


# torch 2.6 cannot distinguish export from compilation; the code for export is correct in both
is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


# -- pooling to a grid, and resizing a grid to a map -------------------------------------------------------------------


def pool_to_grid(x: Tensor, size: int) -> Tensor:
    """Adaptive average pooling to size x size, as two matrix products.   b c h w   ->   b c size size

    The cells are those of torch's pooling; they overlap where `size` does not divide h or w. torch's ONNX export is
    correct only for the traced size, and its CUDA gradient is not deterministic. Matrix products have neither problem.
    """
    if size == 1:
        return x.mean((2, 3), keepdim=True)
    (rows, per_row), (columns, per_column) = (_grid_matrix(_cell_matrix, size, x.shape[axis], x) for axis in (2, 3))
    # products with ones and zeros first, which are exact in any precision, then one division
    return rows @ (x @ columns.mT) / (per_row * per_column.mT).to(x.dtype)


def _cell_matrix(size: int, length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row i has ones from floor(i length / size) up to ceil((i + 1) length / size).   ->   size length, size 1"""
    cell = torch.arange(size, device=device)[:, None]
    position = torch.arange(length, device=device)
    first, end = cell * length // size, ((cell + 1) * length + size - 1) // size
    inside = (position >= first) & (position < end)
    return inside.to(dtype), inside.sum(1, keepdim=True).to(torch.float32)


def _grid_matrix(make: Callable[..., Any], size: int, length: int, like: Tensor) -> Any:
    """Return the matrices of a grid and a length, cached: making them takes a dozen small kernel launches."""
    if torch.compiler.is_compiling():  # in a graph they are constants, or depend on sizes known at run time
        return make(size, length, like.dtype, like.device)
    return _cached_grid_matrix(make, size, length, like.dtype, like.device)


@lru_cache(maxsize=256)
def _cached_grid_matrix(
    make: Callable[..., Any], size: int, length: int, dtype: torch.dtype, device: torch.device
) -> Any:
    with torch.inference_mode(False):  # tensors cached under inference_mode could not be used in training
        return make(size, length, dtype, device)


def resize_from_grid(x: Tensor, size: Sequence[int]) -> Tensor:
    """Bilinear resize with aligned corners, as two matrix products.   b c s t   ->   b c *size

    The values are those of torch's interpolation. Its CUDA gradient adds h w values into s t cells one after another,
    which takes longer than the rest of a pyramid; a matrix product adds them as a tree.
    """
    rows, columns = (
        _grid_matrix(_interpolation_matrix, x.shape[axis], length, x) for axis, length in zip((2, 3), size, strict=True)
    )
    return rows @ x @ columns.mT


def _interpolation_matrix(size: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return rows i with the weights of the cells at position i (size - 1) / (length - 1).   ->   length size"""
    # integers until the last division: position i is i (size - 1) steps of 1 / (length - 1) from the first cell
    steps = max(length - 1, 1)
    at = torch.arange(length, device=device)[:, None] * (size - 1)
    away = (at - torch.arange(size, device=device) * steps).abs()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return ((steps - away).clamp_min(0).to(wide) / steps).to(dtype)
