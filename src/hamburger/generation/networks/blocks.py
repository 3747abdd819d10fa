"""The residual blocks of both networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hamburger.generation.networks.layers import Layers, double, halve


class UpBlock(nn.Module):
    """Twice the size.   b i h w, b   ->   b o 2h 2w

        norm, ReLU, nearest x 2, conv 3, norm, ReLU, conv 3;   shortcut: nearest x 2, conv 1

    Both norms are class-conditional. The shortcut's 1 x 1 convolution is done before the pixels are repeated, which
    gives the same values for a quarter of the work.
    """

    def __init__(self, in_channels: int, out_channels: int, *, num_classes: int, layers: Layers) -> None:
        super().__init__()
        self.norm1 = layers.conditional_norm(in_channels, num_classes)
        self.conv1 = layers.conv(in_channels, out_channels, inside=True)
        self.norm2 = layers.conditional_norm(out_channels, num_classes)
        self.conv2 = layers.conv(out_channels, out_channels, inside=True)
        self.shortcut = layers.conv(in_channels, out_channels, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.conv1(double(torch.relu(self.norm1(x, y))))
        z = self.conv2(torch.relu(self.norm2(z, y)))
        out: Tensor = z + double(self.shortcut(x))
        return out


class FirstBlock(nn.Module):
    """A discriminator's first, on images: no ReLU before anything.   b i h w   ->   b o h/2 w/2

    conv 3, ReLU, conv 3, mean of 2 x 2;   shortcut: mean of 2 x 2, conv 1
    """

    def __init__(self, in_channels: int, out_channels: int, *, layers: Layers) -> None:
        super().__init__()
        self.conv1 = layers.conv(in_channels, out_channels, inside=True)
        self.conv2 = layers.conv(out_channels, out_channels, inside=True)
        self.shortcut = layers.conv(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv2(torch.relu(self.conv1(x)))
        out: Tensor = halve(z) + self.shortcut(halve(x))
        return out


class DownBlock(nn.Module):
    """Half the size, or the same where `down` is False.   b i h w   ->   b o h/2 w/2

        ReLU, conv 3, ReLU, conv 3, mean of 2 x 2;   shortcut: conv 1, mean of 2 x 2

    The shortcut is the identity where neither size nor width changes. Its mean is taken before the convolution, which
    gives the same values for a quarter of the work.
    """

    def __init__(self, in_channels: int, out_channels: int, *, hidden: str, down: bool, layers: Layers) -> None:
        super().__init__()
        width = in_channels if hidden == "in" else out_channels
        self.down = down
        self.conv1 = layers.conv(in_channels, width, inside=True)
        self.conv2 = layers.conv(width, out_channels, inside=True)
        self.shortcut = layers.conv(in_channels, out_channels, 1) if down or in_channels != out_channels else None

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv2(torch.relu(self.conv1(torch.relu(x))))
        if self.down:
            z, x = halve(z), halve(x)
        return z + (x if self.shortcut is None else self.shortcut(x))
