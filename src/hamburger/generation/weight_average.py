"""A running mean of the generator's weights, which makes steadier images than the weights of any one step."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from hamburger.generation.networks.generator import Generator
from hamburger.generation.networks.spectral import settle

RUNNING = ("running_mean", "running_var")


class Average:
    """Weights and running statistics move by 1 - decay of the way; all else (bases, counts) is copied.

    Vectors of power iterations belong to the weights: before images are made, `settled` finds those of the mean.
    """

    def __init__(self, live: Generator, decay: float, start: int) -> None:
        self.decay, self.start = decay, start
        self.net = copy.deepcopy(live).eval().requires_grad_(False)
        moved, copied = _tensors(self.net), _others(self.net)
        sources, others = _tensors(live), _others(live)
        self._moved, self._copied = list(moved.values()), list(copied.values())
        self._sources, self._others = [sources[name] for name in moved], [others[name] for name in copied]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After the update of that step."""
        weight = 1.0 if step < self.start else 1.0 - self.decay
        torch._foreach_lerp_(self._moved, self._sources, weight)
        torch._foreach_copy_(self._copied, self._others)

    @torch.no_grad()
    def settled(self) -> Generator:
        """The network to make images with. Equal weights give equal vectors, however often this was asked."""
        torch._foreach_copy_(self._copied, self._others)
        settle(self.net)
        return self.net

    def state(self) -> dict[str, Any]:
        return dict(self.net.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state)


def _tensors(net: Generator) -> dict[str, Tensor]:
    running = {name: value for name, value in net.named_buffers() if name.endswith(RUNNING)}
    return {**{name: value.detach() for name, value in net.named_parameters()}, **running}


def _others(net: Generator) -> dict[str, Tensor]:
    return {name: value for name, value in net.named_buffers() if not name.endswith(RUNNING)}
