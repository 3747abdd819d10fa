"""The pieces that context modules share, so that each of their files holds only its own idea."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.precision import widen


class BatchNorm(nn.BatchNorm2d):
    """Batch norm that survives one value per channel: pooled to 1 x 1, batch of one, in training.

    One value has no variance; the running statistics stand in for it, and are not updated.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] * x.shape[2] * x.shape[3] == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


def conv(in_channels: int, out_channels: int, kernel: int = 1, *, bias: bool) -> nn.Conv2d:
    """A convolution that keeps the size of the map."""
    return nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=bias)


def conv_norm_relu(
    in_channels: int, out_channels: int, kernel: int = 1, *, bias: bool = False, relu: bool = True
) -> nn.Sequential:
    """Convolution, batch norm and, unless told otherwise, ReLU."""
    layers: list[nn.Module] = [conv(in_channels, out_channels, kernel, bias=bias), BatchNorm(out_channels)]
    return nn.Sequential(*layers, nn.ReLU()) if relu else nn.Sequential(*layers)


def resize(x: Tensor, like: Tensor) -> Tensor:
    """Bilinear to the height and width of `like`, corners aligned as the original networks have it."""
    if x.shape[2:] == like.shape[2:]:
        return x
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)


def softmax32(scores: Tensor, dim: int) -> Tensor:
    """Softmax in float32: unscaled scores overflow half precision before they are normalised."""
    return widen(scores).softmax(dim).to(scores.dtype)
