"""The bread: a linear map at every position (a 1x1 convolution), and the norms that follow one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError, check_choice
from hamburger.layers.norm import BatchNorm1d
from hamburger.literals import Norm
from hamburger.precision import autocast_dtype, full_precision

NORMS = get_args(Norm)
GROUPS = 32


class Bread(nn.Module):
    """W x (+ bias) at every position.   b c n   ->   b d n

    Under float16 autocast it runs in float32: feature maps at scale 1e4 are ordinary inputs to a context layer, and
    their products overflow float16. Under bfloat16 autocast it runs in bfloat16.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight from N(0, 2 / out) as in the authors' code, and the bias as torch's convolutions do."""
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


def make_norm(norm: Norm | Callable[[int], nn.Module], channels: int, momentum: float) -> nn.Module:
    """Return a norm for b c n: "batch" (the paper's), "group" (LightHam's), "none", or a function of the channels."""
    if callable(norm):
        return norm(channels)
    check_choice("Hamburger", "norm", norm, NORMS)
    if norm == "batch":
        return BatchNorm1d(channels, momentum=momentum)
    if norm == "group":
        if channels % GROUPS:
            raise OptionError(
                f"Hamburger: norm='group' has {GROUPS} groups, so channels must be a multiple of {GROUPS} (got "
                f"{channels}); pass norm=lambda c: torch.nn.GroupNorm(groups, c) for another number of groups"
            )
        return nn.GroupNorm(GROUPS, channels)
    return nn.Identity()
