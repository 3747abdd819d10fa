"""The generator: noise and a class to an image."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import InputError, ShapeError
from hamburger.generation.networks.blocks import UpBlock
from hamburger.generation.networks.context import Gated, create_block
from hamburger.generation.networks.design import SMALLEST, Plan
from hamburger.generation.networks.layers import Style
from hamburger.shapes import check_tensor, debugging


class Generator(nn.Module):
    """z: b latent, y: b   ->   images b 3 h w in [-1, 1]

    Linear to 4 x 4, up-blocks, batch norm (without classes), ReLU, conv 3, tanh. The context, where there is one,
    stands after the up-block whose maps have the size that the plan says. `config` holds what `create_gan` was given.
    """

    config: dict[str, Any] | None = None

    def __init__(
        self, style: Style, plan: Plan, *, latent: int, num_classes: int, context_options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        layers, widths = style.generator_layers(), plan.generator
        self.latent, self.num_classes, self.resolution = latent, num_classes, plan.resolution
        self.project = layers.linear(latent, widths[0] * SMALLEST * SMALLEST)
        self.blocks = nn.ModuleList(UpBlock(i, o, num_classes=num_classes, layers=layers) for i, o in pairwise(widths))
        self.place = plan.generator_place
        self.context: Gated | None = None
        if style.context is not None:
            self.context = create_block(
                style.context,
                widths[self.place + 1],
                size=plan.context_at,
                layers=layers,
                num_classes=num_classes,
                options=context_options,
            )
        self.norm = layers.norm(widths[-1])
        self.out = layers.conv(widths[-1], 3)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        check_tensor("Generator", "z", z)
        if z.dim() != 2 or z.shape[1] != self.latent:
            raise ShapeError(f"Generator: z must be (b, {self.latent}), got {tuple(z.shape)}")
        check_classes("Generator", y, z.shape[0], self.num_classes)
        x = self.project(z).unflatten(1, (-1, SMALLEST, SMALLEST))
        for i, block in enumerate(self.blocks):
            x = block(x, y)
            if i == self.place and self.context is not None:
                x = self.context(x, y)
        return torch.tanh(self.out(torch.relu(self.norm(x))))


# ----------------------------------------------------------------------------------------------------------------------
# What the networks are called with.


def check_classes(call: str, y: Tensor, b: int, num_classes: int) -> None:
    """Whole numbers, one per sample. Their range is read on the CPU, elsewhere under `debug()` (reading syncs)."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.dtype == torch.bool:
        got = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"{call}: the classes must be a tensor of whole numbers, got {got}; pass y.long()")
    if y.shape != (b,):
        raise ShapeError(f"{call}: there must be one class per sample, ({b},), got {tuple(y.shape)}")
    if torch.compiler.is_compiling() or not (y.device.type == "cpu" or debugging()) or not b:
        return
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= num_classes:
        raise InputError(
            f"{call}: classes must lie in 0 ... {num_classes - 1}, got {low} ... {high}; build the networks with "
            f"num_classes={high + 1} or more"
        )
