"""A trained network evaluated with other sweeps or other dictionaries than it was trained for: no weight changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError, check_count, check_seed
from hamburger.layers.dictionary import Dictionary
from hamburger.layers.ham import HamLayer


class RedrawnDictionary(nn.Module):
    """First bases drawn anew for every sample in evaluation too, as the authors' code does it.   (b s) d n -> (b s) d r

    Its own generator: the same images in the same order meet the same draws, on every device.
    """

    init, heads = "random", 1

    def __init__(self, layer: HamLayer, seed: int) -> None:
        super().__init__()
        self.ham = layer.ham
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        like = x.new_empty(0, dtype=torch.float32)
        return self.ham.draw(x.shape[0], x.shape[1], like=like, generator=self.generator)

    def update(self, bases: Tensor) -> None:
        """Nothing to keep."""


def solver_variants(
    net: nn.Module, *, steps: Sequence[int | None] = (None,), draws: Sequence[int | None] = (None,)
) -> list[Callable[[], object]]:
    """Each of the steps with each of the draws as a function that makes `net` solve so; draws go on where they were."""
    layers = [module for module in net.modules() if isinstance(module, HamLayer)]
    first = [(layer, layer.eval_steps, layer.dictionary) for layer in layers]

    def take(way: Sequence[tuple[HamLayer, int, Any]]) -> None:
        for layer, sweeps, dictionary in way:
            layer.eval_steps, layer.dictionary = sweeps, dictionary

    made: list[Callable[[], object]] = []
    for sweeps, seed in product(steps, draws):
        take(first)
        override_solver(net, steps=sweeps, draws=seed)
        made.append(partial(take, [(layer, layer.eval_steps, layer.dictionary) for layer in layers]))
    return made


def override_solver(net: nn.Module, *, steps: int | None = None, draws: int | None = None) -> nn.Module:
    """Change in place how the hams of `net` solve in evaluation: `steps` sweeps, dictionaries drawn from seed `draws`.

    What is None stays as it was trained. A network without a ham has nothing to change, which is an error.
    """
    if steps is None and draws is None:
        return net
    layers = [module for module in net.modules() if isinstance(module, HamLayer)]
    if not layers:
        raise OptionError(
            "eval: --steps and --draws change how a ham solves, and this network has no ham; leave them out"
        )
    if steps is not None:
        check_count("eval", "steps", steps, least=0)
    if draws is not None:
        check_seed("eval", draws)
    for place, layer in enumerate(layers):
        if steps is not None:
            layer.eval_steps = steps
        if draws is not None:
            if not isinstance(layer.dictionary, (Dictionary, RedrawnDictionary)):
                raise OptionError(
                    "eval: --draws is for dictionaries over positions; one along channels has a row per position and "
                    "is not drawn here"
                )
            layer.dictionary = RedrawnDictionary(layer, draws + place)  # type: ignore[assignment]
    return net
