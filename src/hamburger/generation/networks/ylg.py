"""YLG (Daras et al., "Your local GAN", CVPR 2020): SAGAN's attention with eight heads and sparse masks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import ShapeError, check_choice
from hamburger.generation.networks.contexts import SelfAttention, gan_contexts
from hamburger.generation.networks.layers import LayerFactory
from hamburger.tensors import full_precision, widen

SCORES = ("dense", "fused")
MASK_PENALTY = -1000.0  # as in the authors' code: low enough, and no row becomes NaN


@gan_contexts.register("ylg")
class SparseAttention(SelfAttention):
    """SAGAN's attention in eight heads, each with its own mask.   b c h w   ->   b c h w

    Heads are consecutive groups of channels; in the output the head index runs fastest. `scores` selects an
    implementation; the values are the same: "dense" (all scores, then masked: the authors' code) or "fused" (torch's
    attention with a mask).
    """

    heads = 8
    mask: Tensor

    def __init__(
        self,
        channels: int,
        *,
        size: int,
        layers: LayerFactory,
        num_classes: int | None = None,
        scores: str = "dense",
    ) -> None:
        check_choice("create_gan with context 'ylg'", "scores", scores, SCORES)
        super().__init__(channels, size=size, layers=layers)
        self.size, self.scores = size, scores
        self.register_buffer("mask", build_masks(size, size), persistent=False)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        if x.shape[2:] != (self.size, self.size):
            raise ShapeError(
                f"SparseAttention: its masks are for maps of {self.size} x {self.size}, got {tuple(x.shape)}"
            )
        queries = _split_heads(self.queries(x))
        keys, values = (_split_heads(F.max_pool2d(layer(x), 2)) for layer in (self.keys, self.values))
        attended = self._attend(queries, keys, values)  # b 8 n e
        merged = attended.movedim(1, 3).flatten(2).mT  # b (e 8) n
        out: Tensor = self.out(merged.unflatten(2, x.shape[2:]))
        return out

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self.scores == "fused":
            # kernels need a multiple of eight channels; zeros do not change the products
            queries, keys = (F.pad(part, (0, -part.shape[-1] % 8)) for part in (queries, keys))
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask, scale=1.0)
        with full_precision(queries.device.type):
            scores = widen(queries) @ widen(keys).mT
            attention = torch.where(self.mask, scores, scores + MASK_PENALTY).softmax(dim=-1)
        return attention.to(values.dtype) @ values

    def extra_repr(self) -> str:
        return f"size={self.size}, scores={self.scores}"


def _split_heads(x: Tensor) -> Tensor:
    """b (8 e) h w   ->   b 8 n e"""
    return x.flatten(2).unflatten(1, (len(HEADS), -1)).mT


# -- masks -------------------------------------------------------------------------------------------------------------


HEADS = ("rtl-1", "rtl-2", "rtl-1", "rtl-2", "ltr-1", "ltr-2", "ltr-1", "ltr-2")


def rank_cells(height: int, width: int) -> Tensor:
    """Rank of each cell by Manhattan distance from the top left, ties by row (the paper's ESA).   ->   (h w)"""
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None]
    order = ((rows + columns) * height + rows).flatten().argsort()
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(height * width)
    return ranks


def attention_pattern(name: str, n: int) -> Tensor:
    """One step of the information flow over ranks 0 ... n-1: entry [a, b] is True if a attends to b.   ->   n n

    Ranks are cut into segments of s = floor(sqrt(n)). "ltr-1" attends back to the start of its segment, "ltr-2" to
    itself and the last rank of every segment. "rtl-1" attends on to the end of its segment, "rtl-2" to itself and the
    first rank of every segment.
    """
    s = math.isqrt(n)
    a, b = torch.arange(n)[:, None], torch.arange(n)[None]
    if name == "ltr-1":
        return (b <= a) & (b >= a - a % s)
    if name == "rtl-1":
        return (a <= b) & (a >= b - b % s)
    return (a == b) | (b % s == (s - 1 if name == "ltr-2" else 0))


def build_masks(height: int, width: int) -> Tensor:
    """One mask per head: True where a query of the map attends to a key of the pooled map.   ->   8 (h w) (h w / 4)

    The paper defines masks on one grid, but there are four queries per key. As in the authors' code, the mask of the
    grid of keys is repeated four times down the queries in raster order, so that a query uses the row of a key
    elsewhere in the image.
    """
    ranks = rank_cells(height // 2, width // 2)
    return torch.stack([attention_pattern(name, len(ranks))[ranks][:, ranks] for name in HEADS]).repeat(1, 4, 1)
