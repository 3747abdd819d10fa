"""The discriminator (an image and its class to a number), and the hinge losses."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import ShapeError
from hamburger.generation.networks.blocks import DownBlock, FirstBlock
from hamburger.generation.networks.context import Gated, create_block
from hamburger.generation.networks.design import Plan
from hamburger.generation.networks.generator import check_classes
from hamburger.generation.networks.layers import Style
from hamburger.precision import widen
from hamburger.shapes import check_shapes, check_tensor


class Discriminator(nn.Module):
    """images b 3 h w, y: b   ->   b

        h = sum over pixels of ReLU of the last block    D = linear(h) + <embedding(y), h>

    The second term is the projection head of Miyato & Koyama. `config` holds what `create_gan` was given.
    """

    config: dict[str, Any] | None = None

    def __init__(self, style: Style, plan: Plan, *, num_classes: int, context_options: Mapping[str, Any]) -> None:
        super().__init__()
        layers, widths = style.discriminator_layers(), plan.discriminator
        self.num_classes, self.resolution = num_classes, plan.resolution
        self.blocks = nn.ModuleList([FirstBlock(3, widths[0], layers=layers)])
        for index, (i, o) in enumerate(pairwise(widths), start=1):
            self.blocks.append(DownBlock(i, o, hidden=style.hidden, down=index < plan.downs, layers=layers))
        self.place = plan.discriminator_place
        self.context: Gated | None = None
        if style.context is not None:
            self.context = create_block(
                style.context,
                widths[self.place],
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
            if i == self.place and self.context is not None:
                x = self.context(x)
        h = torch.relu(x).sum((2, 3))
        out: Tensor = self.out(h)[:, 0] + (self.classes(y) * h).sum(1)
        return out


# ----------------------------------------------------------------------------------------------------------------------
# The hinge losses of all these papers (Lim & Ye, 2017).


def discriminator_hinge(real: Tensor, made: Tensor) -> Tensor:
    """mean of max(0, 1 - D(real)) + mean of max(0, 1 + D(made)).   real: b, made: m   ->   one number"""
    check_shapes("discriminator_hinge", real=(real, "b"), made=(made, "m"))
    return torch.relu(1 - widen(real)).mean() + torch.relu(1 + widen(made)).mean()


def generator_hinge(made: Tensor) -> Tensor:
    """-mean of D(made).   b   ->   one number"""
    check_shapes("generator_hinge", made=(made, "b"))
    return -widen(made).mean()
