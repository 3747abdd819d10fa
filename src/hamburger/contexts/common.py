"""The registry of context modules, and the building blocks that they share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import OptionError, ShapeError, check_count
from hamburger.layers.norm import BatchNorm2d
from hamburger.registry import Registry
from hamburger.tensors import HALF, check_finite, check_tensor, full_precision, widen

contexts: Registry[nn.Module] = Registry("context")


def check_map(call: str, x: Tensor, channels: int) -> None:
    """Raise unless x is b c h w with that many channels: clearer than the error of the first convolution."""
    check_tensor(call, "the input", x)
    if x.dim() != 4 or x.shape[1] != channels:
        hint = f"; build it with channels={x.shape[1]}" if x.dim() == 4 else ""
        raise ShapeError(f"{call}: built for maps b c h w of {channels} channels, got {tuple(x.shape)}{hint}")
    check_finite(call, "the input", x)


def check_sizes(call: str, **sizes: object) -> None:
    """Raise unless every option is a whole number above zero: `check_sizes("sa", channels=channels, heads=heads)`."""
    for option, size in sizes.items():
        check_count(call, option, size, least=1)


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


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    materialise: bool = False,
) -> Tensor:
    """Return softmax attention, fused or with its weights stored in memory.   ... n d, ... m d, ... m e   ->   ... n e

    The scale is 1 / √d where none is given. Fused kernels need four axes and contiguous rows.
    """
    if not materialise:
        return F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout, scale=scale)
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
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
