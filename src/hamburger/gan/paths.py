"""Latents by design: nearer to the mean, or on the way from one to another."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.errors import ShapeError, check_count, check_positive


def truncated(z: Tensor, limit: float) -> Tensor:
    """Normal draws as draws of the normal that ends at -limit and limit, each entry by itself and in its order.

    By ranks (u -> the same share of the shorter distribution) instead of by drawing again: sample i stays a function of
    its own number. Smaller limits give likelier and less varied images.
    """
    check_positive("truncated", "limit", limit)
    low, high = torch.special.ndtr(torch.tensor([-limit, limit], dtype=torch.float64, device=z.device))
    share = low + torch.special.ndtr(z.double()) * (high - low)
    return torch.special.ndtri(share).clamp(-limit, limit).to(z.dtype)


def between(start: Tensor, end: Tensor, count: int) -> Tensor:
    """`count` latents from `start` to `end`, both included, along the arc: a straight line would pass through short
    vectors, which a normal of many entries hardly ever draws.   latent, latent   ->   count latent
    """
    check_count("between", "count", count, least=2)
    if start.dim() != 1 or start.shape != end.shape:
        raise ShapeError(f"between: needs two latents of one length, got {tuple(start.shape)} and {tuple(end.shape)}")
    a, b = start.double(), end.double()
    cosine = torch.dot(a, b) / (a.norm() * b.norm()).clamp_min(1e-12)
    angle = torch.arccos(cosine.clamp(-1, 1))
    t = torch.linspace(0, 1, count, dtype=torch.float64, device=a.device)[:, None]
    if angle.sin() < 1e-6:  # on one line, there is no arc
        return torch.lerp(a[None], b[None], t).to(start.dtype)
    made = (torch.sin((1 - t) * angle) * a + torch.sin(t * angle) * b) / angle.sin()
    made[0], made[-1] = a, b
    return made.to(start.dtype)
