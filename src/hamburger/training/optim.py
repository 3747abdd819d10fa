"""The optimizer and the learning-rate schedule of a recipe."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hamburger.training.recipe import AdamOptim, Optim


def groups(net: nn.Module, optim: Optim | AdamOptim) -> list[dict[str, Any]]:
    """Three parameter groups: weights (decayed), norms and gates (not decayed), biases (not decayed, faster).

    A bias is recognised by its name, a norm's weight or a gate by having one axis or one value. `scale` multiplies the
    schedule's learning rate.
    """
    weights, scales, biases = [], [], []
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:
            continue
        if name.rpartition(".")[2].endswith("bias"):
            biases.append(parameter)
        elif parameter.ndim <= 1 or parameter.numel() == 1:
            scales.append(parameter)
        else:
            weights.append(parameter)
    return [
        {"params": weights, "weight_decay": optim.weight_decay, "scale": 1.0},
        {"params": scales, "weight_decay": 0.0, "scale": 1.0},
        {"params": biases, "weight_decay": 0.0, "scale": getattr(optim, "bias_lr", 1.0)},
    ]


def sgd(net: nn.Module, optim: Optim) -> torch.optim.SGD:
    return torch.optim.SGD(groups(net, optim), lr=optim.lr, momentum=optim.momentum)


def optimizer_of(net: nn.Module, optim: Optim | AdamOptim) -> torch.optim.Optimizer:
    if isinstance(optim, Optim):
        return sgd(net, optim)
    return torch.optim.AdamW(groups(net, optim), lr=optim.lr, betas=(optim.beta1, optim.beta2))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def learning_rate(optim: Optim | AdamOptim, step: int, steps: int) -> float:
    """Poly: lr (1 - step / steps)^power for step 0 ... steps - 1, after a linear rise over the first `warmup` steps.

    It depends on the step alone, so a checkpoint need not store it.
    """
    poly = optim.lr * (1 - step / steps) ** optim.power
    return poly * min(1.0, (step + 1) / optim.warmup) if optim.warmup else poly
