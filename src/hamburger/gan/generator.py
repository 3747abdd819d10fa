"""Noise and a class to an image."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import ShapeError
from hamburger.gan.blocks import UpBlock
from hamburger.gan.context import Gated, create_block
from hamburger.gan.inputs import check_classes
from hamburger.gan.plan import SMALLEST, Plan
from hamburger.gan.style import Style
from hamburger.shapes import check_tensor


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
