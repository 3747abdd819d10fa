"""Small feature maps that need no download: a low-rank matrix with noise, and a conv net's view of a drawn image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def low_rank(seed: int, *, d: int = 16, n: int = 64, rank: int = 4, noise: float = 0.05) -> Tensor:
    """Non-negative parts, each position a mix of a few, plus |normal| noise.   ->   1 d n, float64"""
    draw = torch.Generator().manual_seed(seed)
    # an exponent thins the factors out, as parts of real features are: most entries small, a few large
    parts = torch.rand(1, d, rank, generator=draw, dtype=torch.float64) ** 3
    mix = torch.rand(1, rank, n, generator=draw, dtype=torch.float64) ** 3
    spread = torch.randn(1, d, n, generator=draw, dtype=torch.float64).abs()
    return parts @ mix + noise * spread


def feature_map(seed: int, *, d: int = 16, side: int = 8) -> Tensor:
    """ReLU features of a drawn image under a fixed random conv net.   ->   1 d (side * side), float64

    Two strided convolutions with per-channel standardisation, as batch norm makes it, then ReLU: about half the
    entries are zero and neighbouring positions agree, which is what a Hamburger meets inside a network.
    """
    weights = torch.Generator().manual_seed(2**16)  # the same net for every image
    z = drawn_image(seed, side=4 * side)
    for channels in (d, d):
        fan_in = 9 * z.shape[1]
        kernel = torch.randn(channels, z.shape[1], 3, 3, generator=weights, dtype=z.dtype) * (2 / fan_in) ** 0.5
        z = F.conv2d(z, kernel, stride=2, padding=1)
        z = ((z - z.mean((2, 3), keepdim=True)) / z.std((2, 3), keepdim=True)).relu()
    return z.flatten(2)


def drawn_image(seed: int, *, side: int) -> Tensor:
    """A shaded background, overlapping coloured disks and stripes, a little grain.   ->   1 3 side side, in [0, 1]"""
    draw = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draw, dtype=torch.float64)

    axis = torch.linspace(0, 1, side, dtype=torch.float64)
    down, across = torch.meshgrid(axis, axis, indexing="ij")
    tilt = uniform(3, 2, 1, 1)
    image = 0.5 * (tilt[:, 0] * down + tilt[:, 1] * across)
    for _ in range(5):
        middle, radius, colour = uniform(2), 0.1 + 0.2 * uniform(1), uniform(3, 1, 1)
        inside = (down - middle[0]) ** 2 + (across - middle[1]) ** 2 < radius**2
        image = torch.where(inside, colour, image)
    frequency, phase, left = 6 + 6 * uniform(1), 6.28 * uniform(1), 0.6 * uniform(1)
    stripes = 0.5 + 0.5 * torch.sin(6.28 * frequency * down + phase)
    image = torch.where((across > left) & (across < left + 0.25), stripes * uniform(3, 1, 1), image)
    return (image + 0.02 * uniform(3, side, side)).clamp(0, 1)[None]
