"""The optimizer and the learning-rate schedule of a recipe."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import torch
from torch import nn

from hamburger.training.recipe import AdamOptim, Optim

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def optimizer_of(net: nn.Module, optim: Optim | AdamOptim) -> torch.optim.Optimizer:
    """SGD or AdamW over the parameter groups of the network."""
    if isinstance(optim, Optim) and optim.kind == "sgd":
        return without_dynamo(torch.optim.SGD)(groups(net, optim), lr=optim.lr, momentum=optim.momentum)
    betas = (optim.momentum, 0.999) if isinstance(optim, Optim) else (optim.beta1, optim.beta2)
    return without_dynamo(torch.optim.AdamW)(groups(net, optim), lr=optim.lr, betas=betas)


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


def without_dynamo(kind: type[Kind]) -> type[Kind]:
    """The optimizer class without torch's calls of `torch._dynamo`, whose import takes a second.

    torch calls it so that a compiled step breaks there; our steps are not compiled.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(inspect.unwrap(kind.step))})


def learning_rate(optim: Optim | AdamOptim, step: int, steps: int) -> float:
    """Poly: lr (1 - step / steps)^power for step 0 ... steps - 1, after a linear rise over the first `warmup` steps.

    It depends on the step alone, so a checkpoint need not store it.
    """
    poly = optim.lr * (1 - step / steps) ** optim.power
    return poly * min(1.0, (step + 1) / optim.warmup) if optim.warmup else poly


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]
