"""YLG (Daras et al., "Your local GAN", CVPR 2020): SAGAN's attention with eight heads and sparse masks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import ShapeError, check_choice
from hamburger.generation.networks.contexts import SelfAttention, gan_contexts
from hamburger.generation.networks.layers import LayerFactory
from hamburger.tensors import full_precision, widen

SCORES = ("dense", "fused", "sparse")
MASK_PENALTY = -1000.0  # as in the authors' code: low enough, and no row becomes NaN


@gan_contexts.register("ylg")
class SparseAttention(SelfAttention):
    """SAGAN's attention in eight heads, each with its own mask.   b c h w   ->   b c h w

    `align` assigns rows of the masks, which are defined on the pooled grid of keys, to queries: "tile" (the authors'
    code) or "nearest" (each query has the row of the key it is pooled into), see `build_masks`. Heads are consecutive
    groups of channels; in the output the head index runs fastest.

    `scores` selects an implementation; the values are the same: "dense" (all scores, then masked: the authors' code),
    "fused" (torch's attention with a mask) or "sparse" (only the unmasked scores, see `SparseHeads`).
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
        align: str = "tile",
        scores: str = "dense",
    ) -> None:
        check_choice("create_gan with context 'ylg'", "align", align, ALIGNS)
        check_choice("create_gan with context 'ylg'", "scores", scores, SCORES)
        super().__init__(channels, size=size, layers=layers)
        self.size, self.align, self.scores = size, align, scores
        self.sparse = SparseHeads(size, align=align) if scores == "sparse" else None
        if scores != "sparse":
            self.register_buffer("mask", build_masks(size, size, align=align), persistent=False)

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
            queries, keys = widen(queries), widen(keys)
            if self.sparse is not None:
                return self.sparse(queries, keys, widen(values)).to(values.dtype)
            scores = queries @ keys.mT
            attention = torch.where(self.mask, scores, scores + MASK_PENALTY).softmax(dim=-1)
        return attention.to(values.dtype) @ values

    def extra_repr(self) -> str:
        return f"size={self.size}, align={self.align}, scores={self.scores}"


def _split_heads(x: Tensor) -> Tensor:
    """b (8 e) h w   ->   b 8 n e"""
    return x.flatten(2).unflatten(1, (len(HEADS), -1)).mT


# -- masks -------------------------------------------------------------------------------------------------------------


ALIGNS = ("tile", "nearest")
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


def build_masks(height: int, width: int, *, align: str = "tile") -> Tensor:
    """One mask per head: True where a query of the map attends to a key of the pooled map.   ->   8 (h w) (h w / 4)

    The paper defines masks on one grid, but there are four queries per key. `align="tile"` follows the authors' code:
    the mask of the grid of keys is repeated four times down the queries in raster order, so that a query uses the row
    of a key elsewhere in the image. `align="nearest"` uses the row of the key that the query is pooled into.
    """
    ranks = rank_cells(height // 2, width // 2)
    square = torch.stack([attention_pattern(name, len(ranks))[ranks][:, ranks] for name in HEADS])
    return square[:, map_queries_to_cells(height, width, align=align)]


def map_queries_to_cells(height: int, width: int, *, align: str) -> Tensor:
    """The cell of the pooled grid whose row each query uses, both in raster order.   ->   (h w)"""
    if align == "tile":
        return torch.arange(height * width) % ((height // 2) * (width // 2))
    return (torch.arange(height)[:, None] // 2 * (width // 2) + torch.arange(width)[None] // 2).flatten()


# -- sparse scores -----------------------------------------------------------------------------------------------------
#
# In the order of ranks (see `rank_cells`) the n keys are s segments of s. A local head attends within one segment; a
# global head attends to s keys that are the same for all queries, and to itself. So n s scores per head replace n n.
# The values are those of the dense variant, whose masked scores are too low to count.


class SparseHeads(nn.Module):
    """Masked attention from unmasked scores only, in small dense products.

        queries: b 8 n e   keys: b 8 n/4 e   values: b 8 n/4 f   ->   b 8 n f

    Local and global heads alternate (see `HEADS`); the first half of each attends on, the second half back.
    """

    key_order: Tensor
    query_order: Tensor
    query_order_inverse: Tensor
    local_mask: Tensor
    self_mask: Tensor

    def __init__(self, size: int, *, align: str) -> None:
        super().__init__()
        ranks = rank_cells(size // 2, size // 2)
        self.s = math.isqrt(len(ranks))
        # queries sorted by the rank of the cell whose row they use; all cells have the same number of queries
        query_order = ranks[map_queries_to_cells(size, size, align=align)].argsort(stable=True)
        later = torch.ones(self.s, self.s, dtype=torch.bool).triu()
        # a query whose own key is one of the shared keys must not count it twice
        offset = torch.arange(len(ranks)) % self.s
        not_first, not_last = offset != 0, offset != self.s - 1
        buffers = {
            "key_order": ranks.argsort(),
            "query_order": query_order,
            "query_order_inverse": query_order.argsort(),
            "local_mask": torch.stack([later, later, later.mT, later.mT]),
            "self_mask": torch.stack([not_first, not_first, not_last, not_last]),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        parts = queries[:, :, self.query_order], keys[:, :, self.key_order], values[:, :, self.key_order]
        # contiguous, since products of strided heads are rounded differently
        near = self._attend_locally(*(part[:, 0::2].contiguous() for part in parts))
        far = self._attend_globally(*(part[:, 1::2].contiguous() for part in parts))
        return torch.stack([near, far], 2).flatten(1, 2)[:, :, self.query_order_inverse]

    def _attend_locally(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention within each segment, forwards or backwards."""
        queries = queries.unflatten(2, (self.s, -1))  # b heads s (s 4) e
        keys, values = keys.unflatten(2, (self.s, self.s)), values.unflatten(2, (self.s, self.s))
        queries_per_key = queries.shape[3] // self.s
        mask = self.local_mask.repeat_interleave(queries_per_key, 1)[:, None]  # heads 1 (s 4) s
        scores = (queries @ keys.mT).masked_fill(~mask, -math.inf)
        return (scores.softmax(-1) @ values).flatten(2, 3)

    def _attend_globally(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention to the first or last key of every segment, and to the query's own key."""
        queries_per_key = queries.shape[2] // keys.shape[2]
        shared_keys, shared_values = (self._shared(x) for x in (keys, values))  # b heads s e
        own_keys, own_values = (x.repeat_interleave(queries_per_key, 2) for x in (keys, values))
        own_scores = (queries * own_keys).sum(-1, keepdim=True)
        own_scores = own_scores.masked_fill(~self.self_mask.repeat_interleave(queries_per_key, 1)[..., None], -math.inf)
        attention = torch.cat([queries @ shared_keys.mT, own_scores], -1).softmax(-1)
        return attention[..., : self.s] @ shared_values + attention[..., self.s :] * own_values

    def _shared(self, x: Tensor) -> Tensor:
        """The first or last row of every segment, to which all queries of a head attend.   ->   b heads s e"""
        segments = x.unflatten(2, (self.s, self.s))
        return torch.cat([segments[:, :2, :, 0], segments[:, 2:, :, -1]], 1)
