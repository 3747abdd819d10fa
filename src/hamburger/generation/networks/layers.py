"""Layers that both networks of a paper share: conditional batch norm, resampling, convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import OptionError, check_choice, check_positive
from hamburger.generation.networks.spectral import CONVENTIONS, spectral_norm
from hamburger.layers.norm import BatchNorm2d
from hamburger.registry import Registry


class ConditionalBatchNorm2d(nn.Module):
    """Batch norm with a gain and a bias of its own for every class.   b c h w, b   ->   b c h w

    Statistics are those of the batch, all classes together. `eps` and `momentum` in torch's sense: momentum 0.001 is
    what others write as a decay of 0.999.
    """

    def __init__(self, channels: int, *, num_classes: int, eps: float = 1e-3, momentum: float = 1e-3) -> None:
        super().__init__()
        self.norm = BatchNorm2d(channels, eps=eps, momentum=momentum, affine=False)
        self.gain = nn.Parameter(torch.ones(num_classes, channels))
        self.bias = nn.Parameter(torch.zeros(num_classes, channels))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        gain, bias = (F.embedding(y, table)[:, :, None, None].to(x.dtype) for table in (self.gain, self.bias))
        return torch.addcmul(bias, self.norm(x), gain)

    def extra_repr(self) -> str:
        classes, channels = self.gain.shape
        return f"{channels}, num_classes={classes}"


# ----------------------------------------------------------------------------------------------------------------------
# Twice and half the size, in the dtype and the memory layout of the map.
#
# torch's `interpolate` goes to float32 under autocast, and takes all that is added to its result with it; and on a card
# the way back through `avg_pool2d` takes longer than the convolution before it.


def double(x: Tensor) -> Tensor:
    """Every pixel four times.   b c h w   ->   b c 2h 2w"""
    b, c, h, w = x.shape
    if channels_last(x):
        x = x.permute(0, 2, 3, 1)[:, :, None, :, None, :].expand(b, h, 2, w, 2, c)
        return x.reshape(b, 2 * h, 2 * w, c).permute(0, 3, 1, 2)
    return x[:, :, :, None, :, None].expand(b, c, h, 2, w, 2).reshape(b, c, 2 * h, 2 * w)


def halve(x: Tensor) -> Tensor:
    """The mean of 2 x 2 pixels, of which there are even numbers.   b c h w   ->   b c h/2 w/2"""
    b, c, h, w = x.shape
    if channels_last(x):
        return x.permute(0, 2, 3, 1).reshape(b, h // 2, 2, w // 2, 2, c).mean((2, 4)).permute(0, 3, 1, 2)
    return x.reshape(b, c, h // 2, 2, w // 2, 2).mean((3, 5))


def channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


# ----------------------------------------------------------------------------------------------------------------------
# What the networks of one paper have in common, as a value, and the layers that follow from it.


M = TypeVar("M", nn.Conv2d, nn.Linear, nn.Embedding)

HIDDEN = ("in", "out")
INITS = ("xavier", "xavier-relu", "orthogonal")


@dataclass(frozen=True)
class Style:
    """How a family of networks is put together.

    - `context`: what stands in both networks, by name; None for nothing
    - `generator_spectral`, `discriminator_spectral`: "none", "equality" or "inequality": see `gan.spectral`. Blocks of
      context are normalised by equality wherever their network is normalised at all.
    - `hidden`: the width between the two convolutions of a discriminator's block, that of its input or of its output
    - `init`: "xavier" (uniform), "xavier-relu" (the same, with gain sqrt(2) for 3 x 3 convolutions inside blocks), or
      "orthogonal" (which none of these papers uses; BigGAN does). Biases are zero.
    - `norm_eps`, `norm_momentum`: of every batch norm, in torch's sense
    """

    context: str | None
    generator_spectral: str = "inequality"
    discriminator_spectral: str = "inequality"
    hidden: str = "out"
    init: str = "xavier"
    norm_eps: float = 1e-3
    norm_momentum: float = 1e-3

    def __post_init__(self) -> None:
        call = "create_gan"
        if not (self.context is None or isinstance(self.context, str)):
            raise OptionError(
                f"{call}: context must be a name or None, got {type(self.context).__name__}: the two networks need "
                f"one each, of different widths; register yours with hamburger.contexts and give its name"
            )
        check_choice(call, "generator_spectral", self.generator_spectral, CONVENTIONS)
        check_choice(call, "discriminator_spectral", self.discriminator_spectral, CONVENTIONS)
        check_choice(call, "hidden", self.hidden, HIDDEN)
        check_choice(call, "init", self.init, INITS)
        check_positive(call, "norm_eps", self.norm_eps)
        check_positive(call, "norm_momentum", self.norm_momentum, zero=True, most=1.0)

    def generator_layers(self) -> Layers:
        return Layers(self.generator_spectral, self.init, self.norm_eps, self.norm_momentum)

    def discriminator_layers(self) -> Layers:
        return Layers(self.discriminator_spectral, self.init, self.norm_eps, self.norm_momentum)


@dataclass(frozen=True)
class Layers:
    """Layers of one network: initialised, normalised, and never configured one by one."""

    spectral: str = "none"
    init: str = "xavier"
    norm_eps: float = 1e-3
    norm_momentum: float = 1e-3

    def conv(self, in_channels: int, out_channels: int, kernel: int = 3, *, inside: bool = False) -> nn.Conv2d:
        """A convolution that keeps the size of the map; `inside`: one of the two in a residual block."""
        layer = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2)
        gain = math.sqrt(2) if inside and kernel == 3 and self.init == "xavier-relu" else 1.0
        return spectral_norm(self._fill(layer, gain), self.spectral)

    def linear(self, in_features: int, out_features: int) -> nn.Linear:
        return spectral_norm(self._fill(nn.Linear(in_features, out_features)), self.spectral)

    def embedding(self, num_classes: int, width: int) -> nn.Embedding:
        return spectral_norm(self._fill(nn.Embedding(num_classes, width)), self.spectral)

    def pointwise(self, in_channels: int, out_channels: int) -> nn.Conv2d:
        """The 1 x 1 convolution of a context block: no bias, normalised by equality where the network is at all."""
        layer = self._fill(nn.Conv2d(in_channels, out_channels, 1, bias=False))
        return spectral_norm(layer, self.context_spectral)

    @property
    def context_spectral(self) -> str:
        return "none" if self.spectral == "none" else "equality"

    def norm(self, channels: int) -> BatchNorm2d:
        return BatchNorm2d(channels, eps=self.norm_eps, momentum=self.norm_momentum)

    def conditional_norm(self, channels: int, num_classes: int) -> ConditionalBatchNorm2d:
        return ConditionalBatchNorm2d(channels, num_classes=num_classes, eps=self.norm_eps, momentum=self.norm_momentum)

    def _fill(self, layer: M, gain: float = 1.0) -> M:
        if self.init == "orthogonal":
            nn.init.orthogonal_(layer.weight, gain)
        else:
            nn.init.xavier_uniform_(layer.weight, gain)
        bias = getattr(layer, "bias", None)
        if bias is not None:
            nn.init.zeros_(bias)
        return layer


gans: Registry[Style] = Registry("GAN")
