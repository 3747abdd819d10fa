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
from hamburger.gan.ylg_sparse import SparseHeads
from hamburger.precision import full_precision, widen

SCORES = ("dense", "fused", "sparse")
HIDDEN_SCORE = -1000.0  # as in the authors' code: small enough, and no row can be NaN


@blocks.register("ylg")
class SparseAttention(Gated):
    """SAGAN's attention in eight heads, each with a mask of its own.   b c h w   ->   b c h w

    `align` says how the masks of a halved grid meet the queries of a whole one: "tile" (the authors' code) or
    "nearest" (each query as the key that it was pooled into): see `ylg_masks`. Heads are cut from the channels in order
    and joined with the head running fastest.

    `scores` says how they are computed, never what comes out: "dense" (all, then masked: the authors' code), "fused"
    (torch's attention with a mask) or "sparse" (only those that count: `ylg_sparse`).
    """

    shown: Tensor

    def __init__(
        self,
        channels: int,
        *,
        size: int,
        layers: Layers,
        num_classes: int | None = None,
        align: str = "tile",
        scores: str = "dense",
    ) -> None:
        super().__init__()
        check_choice("create_gan with context 'ylg'", "align", align, ALIGNS)
        check_choice("create_gan with context 'ylg'", "scores", scores, SCORES)
        check_widths("ylg", channels, size, heads=len(HEADS))
        self.size, self.align, self.scores = size, align, scores
        self.queries = layers.pointwise(channels, channels // 8)
        self.keys = layers.pointwise(channels, channels // 8)
        self.values = layers.pointwise(channels, channels // 2)
        self.out = layers.pointwise(channels // 2, channels)
        self.sparse = SparseHeads(size, align=align) if scores == "sparse" else None
        if scores != "sparse":
            self.register_buffer("shown", masks(size, size, align=align), persistent=False)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        if x.shape[2:] != (self.size, self.size):
            raise ShapeError(
                f"SparseAttention: its masks are for maps of {self.size} x {self.size}, got {tuple(x.shape)}"
            )
        queries = _heads(self.queries(x))
        keys, values = (_heads(F.max_pool2d(layer(x), 2)) for layer in (self.keys, self.values))
        mixed = self._mixed(queries, keys, values)  # b 8 n e
        joined = mixed.movedim(1, 3).flatten(2).mT  # b (e 8) n
        out: Tensor = self.out(joined.unflatten(2, x.shape[2:]))
        return out

    def _mixed(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self.scores == "fused":
            # kernels want widths of eight; zeros add nothing to a product
            queries, keys = (F.pad(part, (0, -part.shape[-1] % 8)) for part in (queries, keys))
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.shown, scale=1.0)
        with full_precision(queries.device.type):
            queries, keys = widen(queries), widen(keys)
            if self.sparse is not None:
                return self.sparse(queries, keys, widen(values)).to(values.dtype)
            scores = queries @ keys.mT
            attention = torch.where(self.shown, scores, scores + HIDDEN_SCORE).softmax(dim=-1)
        return attention.to(values.dtype) @ values

    def extra_repr(self) -> str:
        return f"size={self.size}, align={self.align}, scores={self.scores}"


def _heads(x: Tensor) -> Tensor:
    """b (8 e) h w   ->   b 8 n e"""
    return x.flatten(2).unflatten(1, (len(HEADS), -1)).mT


@gans.register("ylg")
def ylg() -> Style:
    return Style(context="ylg")
