"""Gradients of one step by several strategies: the same weights, batch and draws, so that only what is kept differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError
from hamburger.hams.gradients import as_gradient
from hamburger.layers.ham import HamLayer

REFERENCE = "bptt"
STRATEGIES = ("one-step", "truncated:1", "truncated:2", REFERENCE)
AngleRow = dict[str, float | None]


def measure_angles(net: nn.Module, loss: Callable[[], Tensor]) -> AngleRow:
    """Norms, and cosines to BPTT, of the gradients of `loss` by each strategy; nothing else is changed by it.

    `norm_weights_*` and `cosine_weights_*` are of all weights of the network at once, as an optimiser would get them;
    `*_input_*` of what the ham was given, X, where the network has one ham: Eq. 12 against Eq. 13 times dL/dY. None
    stands for what is not finite, and for the angle of a gradient that is zero.
    """
    hams = [module for module in net.modules() if isinstance(module, HamLayer)]
    weights = [parameter for parameter in net.parameters() if parameter.requires_grad]
    pulled: dict[str, dict[str, list[Tensor]]] = {}
    for strategy in STRATEGIES:
        with _untouched(net), _strategy(hams, strategy), _inputs(hams) as given:
            value = loss()
            found = torch.autograd.grad(value, [*given, *weights], allow_unused=True)
        own = [torch.zeros_like(x) if g is None else g for x, g in zip((*given, *weights), found, strict=True)]
        pulled[strategy] = {"weights": own[len(given) :]} | ({"input": own[: len(given)]} if len(given) == 1 else {})
    made: AngleRow = {}
    for place, reference in pulled[REFERENCE].items():
        for strategy, gradients in pulled.items():
            key = f"{place}_{strategy.replace(':', '').replace('-', '_')}"
            made[f"norm_{key}"] = _finite(math.sqrt(dot(gradients[place], gradients[place])))
            if strategy != REFERENCE:
                made[f"cosine_{key}"] = cosine(gradients[place], reference)
    return made


def check_has_ham(net: nn.Module) -> None:
    if not any(isinstance(module, HamLayer) for module in net.modules()):
        raise OptionError(
            "train: angles_every compares the gradients of a ham, and this network has none; --set angles_every=0"
        )


def dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return float(torch.stack([(a.double() * b.double()).sum() for a, b in zip(one, other, strict=True)]).sum())


def cosine(one: Sequence[Tensor], other: Sequence[Tensor]) -> float | None:
    norms = math.sqrt(dot(one, one)) * math.sqrt(dot(other, other))
    return _finite(dot(one, other) / norms) if norms > 0 else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _untouched(net: nn.Module) -> Iterator[None]:
    """Statistics of norms, online dictionaries and generators come back to where they were."""
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
    devices = {parameter.device for parameter in net.parameters() if parameter.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


@contextmanager
def _strategy(hams: Sequence[HamLayer], name: str) -> Iterator[None]:
    """All by plain torch: kernels know one strategy only, and round in their own way."""
    before = [(ham.grad, ham.backend) for ham in hams]
    for ham in hams:
        ham.grad, ham.backend = as_gradient(name), "plain"
    try:
        yield
    finally:
        for ham, (grad, backend) in zip(hams, before, strict=True):
            ham.grad, ham.backend = grad, backend


@contextmanager
def _inputs(hams: Sequence[HamLayer]) -> Iterator[list[Tensor]]:
    """What the hams are given, in the order of their calls."""
    given: list[Tensor] = []
    handles = [ham.register_forward_pre_hook(lambda _, args: given.append(args[0])) for ham in hams]
    try:
        yield given
    finally:
        for handle in handles:
            handle.remove()
