"""Layers and residual blocks of generators and discriminators."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.generation.networks.spectral import spectral_norm
from hamburger.layers.norm import BatchNorm2d


class ConditionalBatchNorm2d(nn.Module):
    """Batch norm with a separate gain and bias for every class.   b c h w, b   ->   b c h w

    Statistics are those of the whole batch. `momentum` is meant as in torch: 0.001 is a decay of 0.999 elsewhere.
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


# -- resampling by two, keeping data type and memory layout ------------------------------------------------------------
#
# torch's `interpolate` returns float32 under autocast, and so does everything that is added to its result. On a GPU the
# backward pass of `avg_pool2d` takes longer than the convolution before it.


def upsample(x: Tensor) -> Tensor:
    """Nearest-neighbour upsampling by two.   b c h w   ->   b c 2h 2w"""
    b, c, h, w = x.shape
    if is_channels_last(x):
        x = x.permute(0, 2, 3, 1)[:, :, None, :, None, :].expand(b, h, 2, w, 2, c)
        return x.reshape(b, 2 * h, 2 * w, c).permute(0, 3, 1, 2)
    return x[:, :, :, None, :, None].expand(b, c, h, 2, w, 2).reshape(b, c, 2 * h, 2 * w)


def downsample(x: Tensor) -> Tensor:
    """Mean over 2 x 2 pixels; h and w must be even.   b c h w   ->   b c h/2 w/2"""
    b, c, h, w = x.shape
    if is_channels_last(x):
        return x.permute(0, 2, 3, 1).reshape(b, h // 2, 2, w // 2, 2, c).mean((2, 4)).permute(0, 3, 1, 2)
    return x.reshape(b, c, h // 2, 2, w // 2, 2).mean((3, 5))


def is_channels_last(x: Tensor) -> bool:
    """Whether the tensor is channels-last and not contiguous as well."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


# -- layers ------------------------------------------------------------------------------------------------------------


M = TypeVar("M", nn.Conv2d, nn.Linear, nn.Embedding)

INITS = ("xavier", "xavier-relu")


@dataclass(frozen=True)
class LayerFactory:
    """Creates the layers of one network, initialised and spectrally normalised alike."""

    spectral: str = "none"
    init: str = "xavier"
    norm_eps: float = 1e-3
    norm_momentum: float = 1e-3

    def conv(self, in_channels: int, out_channels: int, kernel: int = 3, *, inside: bool = False) -> nn.Conv2d:
        """A convolution that keeps the map size; `inside`: it is one of the two in a residual block."""
        layer = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2)
        gain = math.sqrt(2) if inside and kernel == 3 and self.init == "xavier-relu" else 1.0
        return spectral_norm(self._fill(layer, gain), self.spectral)

    def linear(self, in_features: int, out_features: int) -> nn.Linear:
        return spectral_norm(self._fill(nn.Linear(in_features, out_features)), self.spectral)

    def embedding(self, num_classes: int, width: int) -> nn.Embedding:
        return spectral_norm(self._fill(nn.Embedding(num_classes, width)), self.spectral)

    def pointwise(self, in_channels: int, out_channels: int) -> nn.Conv2d:
        """The 1 x 1 convolution of a context, without bias and with `context_spectral`."""
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
        nn.init.xavier_uniform_(layer.weight, gain)
        bias = getattr(layer, "bias", None)
        if bias is not None:
            nn.init.zeros_(bias)
        return layer


# -- residual blocks ---------------------------------------------------------------------------------------------------


class UpBlock(nn.Module):
    """Generator block that doubles the map.   b i h w, b   ->   b o 2h 2w

        norm, ReLU, nearest x 2, conv 3, norm, ReLU, conv 3;   shortcut: nearest x 2, conv 1

    Both norms are class-conditional. The shortcut convolves before it upsamples, which gives the same values for a
    quarter of the work.
    """

    def __init__(self, in_channels: int, out_channels: int, *, num_classes: int, layers: LayerFactory) -> None:
        super().__init__()
        self.norm1 = layers.conditional_norm(in_channels, num_classes)
        self.conv1 = layers.conv(in_channels, out_channels, inside=True)
        self.norm2 = layers.conditional_norm(out_channels, num_classes)
        self.conv2 = layers.conv(out_channels, out_channels, inside=True)
        self.shortcut = layers.conv(in_channels, out_channels, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.conv1(upsample(torch.relu(self.norm1(x, y))))
        z = self.conv2(torch.relu(self.norm2(z, y)))
        out: Tensor = z + upsample(self.shortcut(x))
        return out


class DownBlock(nn.Module):
    """Discriminator block that halves the map if `down`.   b i h w   ->   b o h/2 w/2

        ReLU, conv 3, ReLU, conv 3, mean of 2 x 2;   shortcut: conv 1, mean of 2 x 2

    The `first` block has no ReLU on the images. The shortcut is the identity if neither map size nor channels change.
    It downsamples before it convolves, which gives the same values for a quarter of the work.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        hidden: str = "out",
        down: bool = True,
        first: bool = False,
        layers: LayerFactory,
    ) -> None:
        super().__init__()
        width = in_channels if hidden == "in" else out_channels
        self.down, self.first = down, first
        self.conv1 = layers.conv(in_channels, width, inside=True)
        self.conv2 = layers.conv(width, out_channels, inside=True)
        self.shortcut = layers.conv(in_channels, out_channels, 1) if down or in_channels != out_channels else None

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv2(torch.relu(self.conv1(x if self.first else torch.relu(x))))
        if self.down:
            z, x = downsample(z), downsample(x)
        return z + (x if self.shortcut is None else self.shortcut(x))
