"""The discriminator, which scores an image and its class, and the hinge losses."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import ShapeError
from hamburger.generation.networks.context import GatedContext, create_gan_context
from hamburger.generation.networks.design import GanPlan
from hamburger.generation.networks.generator import check_classes
from hamburger.generation.networks.layers import DownBlock, FirstBlock, GanStyle
from hamburger.tensors import check_shapes, check_tensor, widen


class Discriminator(nn.Module):
    """images b 3 h w, y: b   ->   b

        h = sum over pixels of ReLU of the last block    D = linear(h) + <embedding(y), h>

    The second term is the projection head of Miyato & Koyama. `config` holds the arguments of `create_gan`.
    """

    config: dict[str, Any] | None = None

    def __init__(self, style: GanStyle, plan: GanPlan, *, num_classes: int, context_options: Mapping[str, Any]) -> None:
        super().__init__()
        layers, widths = style.discriminator_layers(), plan.discriminator
        self.num_classes, self.resolution = num_classes, plan.resolution
        self.blocks = nn.ModuleList([FirstBlock(3, widths[0], layers=layers)])
        for index, (i, o) in enumerate(pairwise(widths), start=1):
            self.blocks.append(DownBlock(i, o, hidden=style.hidden, down=index < plan.downs, layers=layers))
        self.context_block = plan.discriminator_context_block
        self.context: GatedContext | None = None
        if style.context is not None:
            self.context = create_gan_context(
                style.context,
                widths[self.context_block],
                size=plan.context_at,
                layers=layers,
                num_classes=None,
                options=context_options,
            )
        self.out = layers.linear(widths[-1], 1)
        self.classes = layers.embedding(num_classes, widths[-1])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        check_tensor("Discriminator", "the images", x)
        want = (3, self.resolution, self.resolution)
        if x.dim() != 4 or x.shape[1:] != want:
            raise ShapeError(
                f"Discriminator: the images must be (b, {want[0]}, {want[1]}, {want[2]}), got {tuple(x.shape)}"
            )
        check_classes("Discriminator", y, x.shape[0], self.num_classes)
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == self.context_block and self.context is not None:
                x = self.context(x)
        h = torch.relu(x).sum((2, 3))
        out: Tensor = self.out(h)[:, 0] + (self.classes(y) * h).sum(1)
        return out


# -- hinge losses (Lim & Ye, 2017), used by all these papers -----------------------------------------------------------


def discriminator_hinge(real: Tensor, made: Tensor) -> Tensor:
    """mean of max(0, 1 - D(real)) + mean of max(0, 1 + D(made)).   real: b, made: m   ->   scalar"""
    check_shapes("discriminator_hinge", real=(real, "b"), made=(made, "m"))
    return torch.relu(1 - widen(real)).mean() + torch.relu(1 + widen(made)).mean()


def generator_hinge(made: Tensor) -> Tensor:
    """-mean of D(made).   b   ->   scalar"""
    check_shapes("generator_hinge", made=(made, "b"))
    return -widen(made).mean()
