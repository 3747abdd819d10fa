"""A small picture made from nothing, to try a network on when no photograph is at hand."""

from __future__ import annotations

import torch
from torch import Tensor


def scene(height: int, width: int, *, seed: int = 0) -> Tensor:
    """Coloured discs over a gradient, with grain: edges, flat parts and texture.   ->   3 h w uint8"""
    generator = torch.Generator().manual_seed(seed)
    y = torch.linspace(0, 1, height).view(-1, 1)
    x = torch.linspace(0, 1, width).view(1, -1)
    picture = torch.stack([y + 0 * x, 0 * y + x, 1 - (x + y) / 2])
    for _ in range(12):
        cy, cx, radius, *colour = torch.rand(6, generator=generator).tolist()
        inside = (y - cy) ** 2 + (x - cx) ** 2 < (0.05 + radius / 5) ** 2
        picture = torch.where(inside, torch.tensor(colour).view(3, 1, 1), picture)
    grain = 0.03 * torch.randn(3, height, width, generator=generator)
    return ((picture + grain).clamp(0, 1) * 255).round().to(torch.uint8)
