"""Evaluate a trained network with other step counts or other dictionaries; no weight changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError, check_count, check_seed
from hamburger.layers.ham import Dictionary, HamLayer


class RedrawnDictionary(nn.Module):
    """First bases drawn anew for every sample, in evaluation too, as in the authors' code.   (b s) d n -> (b s) d r

    It has its own generator: the same images in the same order get the same draws on every device.
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
        """Do nothing: drawn bases are not updated."""


def solver_variants(
    net: nn.Module, *, steps: Sequence[int | None] = (None,), draws: Sequence[int | None] = (None,)
) -> list[Callable[[], object]]:
    """Functions that switch `net` to each combination of `steps` and `draws`; each keeps the state of its draws."""
    layers = [module for module in net.modules() if isinstance(module, HamLayer)]
    trained = [(layer, layer.eval_steps, layer.dictionary) for layer in layers]

    def switch(settings: Sequence[tuple[HamLayer, int, Any]]) -> None:
        for layer, step_count, dictionary in settings:
            layer.eval_steps, layer.dictionary = step_count, dictionary

    variants: list[Callable[[], object]] = []
    for step_count, seed in product(steps, draws):
        switch(trained)
        override_solver(net, steps=step_count, draws=seed)
        variants.append(partial(switch, [(layer, layer.eval_steps, layer.dictionary) for layer in layers]))
    return variants


def override_solver(net: nn.Module, *, steps: int | None = None, draws: int | None = None) -> nn.Module:
    """Change in place how the hams of `net` solve in evaluation: `steps` steps, dictionaries drawn from seed `draws`.

    None leaves a setting as trained. A network without a ham is an error.
    """
    if steps is None and draws is None:
        return net
    layers = [module for module in net.modules() if isinstance(module, HamLayer)]
    if not layers:
        raise OptionError("eval: --steps and --draws need a ham, and this network has none; leave them out")
    if steps is not None:
        check_count("eval", "steps", steps, least=0)
    if draws is not None:
        check_seed("eval", draws)
    for index, layer in enumerate(layers):
        if steps is not None:
            layer.eval_steps = steps
        if draws is not None:
            if not isinstance(layer.dictionary, (Dictionary, RedrawnDictionary)):
                raise OptionError(
                    "eval: --draws needs a spatial ham; the dictionary of a channel ham has one row per position and "
                    "cannot be redrawn"
                )
            layer.dictionary = RedrawnDictionary(layer, draws + index)  # type: ignore[assignment]
    return net
