"""The linear slices around the ham: a 1x1 convolution on flattened positions, and the norms that follow one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError, check_choice
from hamburger.layers.norm import BatchNorm1d
from hamburger.precision import autocast_dtype, full_precision

NORMS = ("batch", "group", "none")
GROUPS = 32


class Bread(nn.Module):
    """W x (+ bias) at every position.   b c n   ->   b d n

    Under float16 autocast it runs in float32: a feature map at scale 1e4 is an ordinary input to a context layer, and
    its products do not fit float16. bfloat16 autocast is obeyed.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """N(0, 2 / out) as in the authors' code; the bias as in torch's convolutions."""
        out_channels, in_channels = self.weight.shape
        nn.init.normal_(self.weight, std=math.sqrt(2 / out_channels))
        if self.bias is not None:
            nn.init.uniform_(self.bias, -1 / math.sqrt(in_channels), 1 / math.sqrt(in_channels))

    def forward(self, x: Tensor) -> Tensor:
        cast = autocast_dtype(x.device.type)
        if cast == torch.float16:
            with full_precision(x.device.type):
                return self._product(x.float())
        return self._product(x if cast else x.to(self.weight.dtype))

    def _product(self, x: Tensor) -> Tensor:
        weight = self.weight.expand(x.shape[0], -1, -1)
        if self.bias is None:
            return torch.bmm(weight, x)
        return torch.baddbmm(self.bias[None, :, None], weight, x)

    def extra_repr(self) -> str:
        out_channels, in_channels = self.weight.shape
        return f"{in_channels}, {out_channels}, bias={self.bias is not None}"


def make_norm(norm: str | Callable[[int], nn.Module], channels: int, momentum: float) -> nn.Module:
    """The norm on b c n: "batch" (the paper's), "group" (LightHam's), "none", or a function of the channels."""
    if callable(norm):
        return norm(channels)
    check_choice("Hamburger", "norm", norm, NORMS)
    if norm == "batch":
        return BatchNorm1d(channels, momentum=momentum)
    if norm == "group":
        if channels % GROUPS:
            raise OptionError(
                f"Hamburger: norm='group' uses {GROUPS} groups, so the channels must be a multiple of {GROUPS}, got "
                f"{channels}; pass norm=lambda c: torch.nn.GroupNorm(groups, c) for another number"
            )
        return nn.GroupNorm(GROUPS, channels)
    return nn.Identity()
