"""Batch norm and conv-norm-ReLU written from their definitions, to compare context modules with in evaluation."""

from __future__ import annotations

import torch


def randomise(layer):
    """Every parameter and statistic away from its neutral start, so that forgetting one shows."""
    for tensor in (*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())):
        tensor.data = torch.rand_like(tensor) * 0.5 + 0.1 if tensor.dim() < 2 else torch.randn_like(tensor) * 0.5
    return layer.double().eval()


def norm(layer, y):
    """Batch norm in evaluation, by its definition."""
    mean, var, weight, bias = (
        t[:, None, None] for t in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
    )
    return (y - mean) / (var + layer.eps).sqrt() * weight + bias


def cbr(block, y):
    weight, bias = block[0].weight[:, :, 0, 0], block[0].bias
    y = torch.einsum("oc,bchw->bohw", weight, y)
    return norm(block[1], y if bias is None else y + bias[:, None, None]).clamp_min(0)


def count(layer):
    return sum(p.numel() for p in layer.parameters())
