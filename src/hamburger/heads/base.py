"""What a head promises: logits for every feature map position, and the loss it is trained with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from hamburger.losses.cross_entropy import cross_entropy
from hamburger.registry import Registry


class Outputs(NamedTuple):
    """`logits` (b k h' w') are the prediction; `aux` is what only the loss needs, empty in evaluation."""

    logits: Tensor
    aux: dict[str, Tensor]


class Head(nn.Module):
    """[b c_i h_i w_i, ...]   ->   Outputs.

    The constructor takes `channels`, the widths of the backbone's maps from shallow to deep, `num_classes`, and options
    by keyword.
    """

    def forward(self, features: Sequence[Tensor]) -> Outputs:
        raise NotImplementedError

    def loss(self, outputs: Outputs, target: Tensor) -> dict[str, Tensor]:
        """Terms by name, already weighted: training minimises their sum.   target: b h w, 255 where unlabelled"""
        return {"ce": cross_entropy(outputs.logits, target)}

    def counts(self, target: Tensor) -> dict[str, Tensor]:
        """How many things a term averages over, for terms whose things are not the labelled pixels.

        Where a batch is trained on in parts, this is what each part's term weighs.
        """
        return {}


# constructors take (channels, num_classes, **options)
heads: Registry[Head] = Registry("head")
