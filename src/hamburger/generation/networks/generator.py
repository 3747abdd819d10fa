"""The generator: a latent vector and a class to an image."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import InputError, ShapeError
from hamburger.generation.networks.context import GatedContext, create_gan_context
from hamburger.generation.networks.design import FIRST_SIZE, GanPlan
from hamburger.generation.networks.layers import GanStyle, UpBlock
from hamburger.tensors import check_tensor, debugging


class Generator(nn.Module):
    """z: b latent, y: b   ->   images b 3 h w in [-1, 1]

    Linear to 4 x 4, up-blocks, batch norm (without classes), ReLU, conv 3, tanh. The context, if there is one, follows
    the up-block whose output has the size `plan.context_at`. `config` holds the arguments of `create_gan`.
    """

    config: dict[str, Any] | None = None

    def __init__(
        self, style: GanStyle, plan: GanPlan, *, latent: int, num_classes: int, context_options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        layers, widths = style.generator_layers(), plan.generator
        self.latent, self.num_classes, self.resolution = latent, num_classes, plan.resolution
        self.project = layers.linear(latent, widths[0] * FIRST_SIZE * FIRST_SIZE)
        self.blocks = nn.ModuleList(UpBlock(i, o, num_classes=num_classes, layers=layers) for i, o in pairwise(widths))
        self.context_block = plan.generator_context_block
        self.context: GatedContext | None = None
        if style.context is not None:
            self.context = create_gan_context(
                style.context,
                widths[self.context_block + 1],
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
        x = self.project(z).unflatten(1, (-1, FIRST_SIZE, FIRST_SIZE))
        for i, block in enumerate(self.blocks):
            x = block(x, y)
            if i == self.context_block and self.context is not None:
                x = self.context(x, y)
        return torch.tanh(self.out(torch.relu(self.norm(x))))


def check_classes(call: str, y: Tensor, b: int, num_classes: int) -> None:
    """Raise unless y holds a class for each sample. On a GPU the range is checked only under `debug()`, as it syncs."""
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
