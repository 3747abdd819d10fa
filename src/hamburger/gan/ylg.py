"""YLG (Daras et al., "Your local GAN", CVPR 2020): SAGAN's block with eight heads that each see a part."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import ShapeError, check_choice
from hamburger.gan.context import Gated, blocks
from hamburger.gan.sagan import check_widths
from hamburger.gan.style import Layers, Style, gans
from hamburger.gan.ylg_masks import ALIGNS, HEADS, masks
from hamburger.precision import full_precision, widen

HIDDEN_SCORE = -1000.0  # as in the authors' code: small enough, and no row can be NaN


@blocks.register("ylg")
class SparseAttention(Gated):
    """SAGAN's attention in eight heads, each with a mask of its own.   b c h w   ->   b c h w

    `align` says how the masks of a halved grid meet the queries of a whole one: "tile" (the authors' code) or
    "nearest" (each query as the key that it was pooled into): see `ylg_masks`. Scores are computed densely and masked,
    as in the authors' code. Heads are cut from the channels in order and joined with the head running fastest.
    """

    shown: Tensor

    def __init__(
        self, channels: int, *, size: int, layers: Layers, num_classes: int | None = None, align: str = "tile"
    ) -> None:
        super().__init__()
        check_choice("create_gan with context 'ylg'", "align", align, ALIGNS)
        check_widths("ylg", channels, size, heads=len(HEADS))
        self.size, self.align = size, align
        self.queries = layers.pointwise(channels, channels // 8)
        self.keys = layers.pointwise(channels, channels // 8)
        self.values = layers.pointwise(channels, channels // 2)
        self.out = layers.pointwise(channels // 2, channels)
        self.register_buffer("shown", masks(size, size, align=align), persistent=False)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        if x.shape[2:] != (self.size, self.size):
            raise ShapeError(
                f"SparseAttention: its masks are for maps of {self.size} x {self.size}, got {tuple(x.shape)}"
            )
        queries = _heads(self.queries(x))
        keys, values = (_heads(F.max_pool2d(layer(x), 2)) for layer in (self.keys, self.values))
        with full_precision(x.device.type):
            scores = widen(queries) @ widen(keys).mT
            attention = torch.where(self.shown, scores, scores + HIDDEN_SCORE).softmax(dim=-1)
        mixed = attention.to(values.dtype) @ values  # b 8 n e
        joined = mixed.movedim(1, 3).flatten(2).mT  # b (e 8) n
        out: Tensor = self.out(joined.unflatten(2, x.shape[2:]))
        return out

    def extra_repr(self) -> str:
        return f"size={self.size}, align={self.align}"


def _heads(x: Tensor) -> Tensor:
    """b (8 e) h w   ->   b 8 n e"""
    return x.flatten(2).unflatten(1, (len(HEADS), -1)).mT


@gans.register("ylg")
def ylg() -> Style:
    return Style(context="ylg")
