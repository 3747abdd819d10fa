"""What the networks of one paper have in common, as a value, and the layers that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from hamburger.errors import OptionError, check_choice, check_positive
from hamburger.gan.norm import ConditionalBatchNorm2d
from hamburger.gan.spectral import CONVENTIONS, spectral_norm
from hamburger.layers.norm import BatchNorm2d
from hamburger.registry import Registry

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
