"""YLG (Daras et al., "Your local GAN", CVPR 2020): SAGAN's block with eight heads that each see a part."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import ShapeError, check_choice, check_count
from hamburger.generation.networks.context import Gated, blocks
from hamburger.generation.networks.layers import Layers, Style, gans
from hamburger.generation.networks.sagan import check_widths
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


# ----------------------------------------------------------------------------------------------------------------------
# Who may look at whom in YLG's sparse attention (Daras et al., "Your local GAN", CVPR 2020).


ALIGNS = ("tile", "nearest")
HEADS = ("rtl-1", "rtl-2", "rtl-1", "rtl-2", "ltr-1", "ltr-2", "ltr-1", "ltr-2")


def enumeration(height: int, width: int) -> Tensor:
    """ESA: ranks of cells by Manhattan distance from the top left, ties by row.   ->   h w, in raster order"""
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None]
    order = ((rows + columns) * height + rows).flatten().argsort()
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(height * width)
    return ranks


def pattern(name: str, n: int) -> Tensor:
    """One step of the information flow over ranks 0 ... n-1: [a, b] says that a sees b.   ->   n n

    With s = floor(sqrt(n)): "ltr-1" sees back to the start of its stretch of s; "ltr-2" itself and the last of every
    stretch. "rtl-1" sees on to the end of its stretch, "rtl-2" itself and the first of every stretch.
    """
    s = math.isqrt(n)
    a, b = torch.arange(n)[:, None], torch.arange(n)[None]
    if name == "ltr-1":
        return (b <= a) & (b >= a - a % s)
    if name == "rtl-1":
        return (a <= b) & (a >= b - b % s)
    return (a == b) | (b % s == (s - 1 if name == "ltr-2" else 0))


def masks(height: int, width: int, *, align: str = "tile") -> Tensor:
    """One mask per head: True where a query of a map may see a key of the map halved.   ->   8 (h w) (h w / 4)

    The paper defines masks on one grid, but there are four queries to a key. `align="tile"` is what the authors' code
    does: the mask of the keys' grid is repeated four times down the queries in raster order, so that a query uses the
    row of a key elsewhere in the image. `align="nearest"` takes the row of the key that the query was pooled into.
    """
    ranks = enumeration(height // 2, width // 2)
    square = torch.stack([pattern(name, len(ranks))[ranks][:, ranks] for name in HEADS])
    return square[:, query_cells(height, width, align=align)]


def query_cells(height: int, width: int, *, align: str) -> Tensor:
    """The cell of the halved grid whose row each query uses, both in raster order.   ->   h w"""
    check_count("masks", "height", height, least=2)
    check_count("masks", "width", width, least=2)
    check_choice("masks", "align", align, ALIGNS)
    if align == "tile":
        return torch.arange(height * width) % ((height // 2) * (width // 2))
    return (torch.arange(height)[:, None] // 2 * (width // 2) + torch.arange(width)[None] // 2).flatten()


# ----------------------------------------------------------------------------------------------------------------------
# YLG's masked attention without the masked part: what every query sees, and nothing else, in small dense products.
#
# In the order of ranks (see `ylg_masks`) the n keys are s stretches of s. A head of the first kind sees within its own
# stretch; one of the second kind sees s keys that are the same for all, and itself. So n s scores a head take the place
# of n n; the values are those of the dense form, whose hidden scores are too low to count.


FIRST = tuple(i for i, name in enumerate(HEADS) if name.endswith("-1"))
SECOND = tuple(i for i, name in enumerate(HEADS) if name.endswith("-2"))


class SparseHeads(nn.Module):
    """queries: b 8 n e   keys: b 8 n/4 e   values: b 8 n/4 f   ->   b 8 n f"""

    by_rank: Tensor
    asking: Tensor
    answered: Tensor
    seen: Tensor
    itself: Tensor

    def __init__(self, size: int, *, align: str) -> None:
        super().__init__()
        ranks = enumeration(size // 2, size // 2)
        self.s = math.isqrt(len(ranks))
        by_rank = ranks.argsort()
        # queries sorted by the rank of the cell whose row they use; each cell has as many
        asking = ranks[query_cells(size, size, align=align)].argsort(stable=True)
        place = torch.arange(self.s)
        later, earlier = place[:, None] <= place[None], place[:, None] >= place[None]
        seen = torch.stack([later if HEADS[i].startswith("rtl") else earlier for i in FIRST])  # a sees b
        # a key that all see is not counted again as the query's own
        ends = torch.arange(len(ranks)) % self.s
        itself = torch.stack([ends != (0 if HEADS[i].startswith("rtl") else self.s - 1) for i in SECOND])
        for name, value in (
            ("by_rank", by_rank),
            ("asking", asking),
            ("answered", asking.argsort()),
            ("seen", seen),
            ("itself", itself),
        ):
            self.register_buffer(name, value, persistent=False)
        self.first_rtl = [HEADS[i].startswith("rtl") for i in SECOND]

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        queries = queries[:, :, self.asking]
        keys, values = keys[:, :, self.by_rank], values[:, :, self.by_rank]
        near = self._within(*(_sparse_heads(x, FIRST) for x in (queries, keys, values)))
        far = self._across(*(_sparse_heads(x, SECOND) for x in (queries, keys, values)))
        heads = {**dict(zip(FIRST, near.unbind(1), strict=True)), **dict(zip(SECOND, far.unbind(1), strict=True))}
        return torch.stack([heads[i] for i in range(len(HEADS))], 1)[:, :, self.answered]

    def _within(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Each stretch by itself, forwards or backwards."""
        asked = queries.unflatten(2, (self.s, -1))  # b heads s (s 4) e
        known, told = keys.unflatten(2, (self.s, self.s)), values.unflatten(2, (self.s, self.s))
        each = asked.shape[3] // self.s
        seen = self.seen.repeat_interleave(each, 1)[:, None]  # heads 1 (s 4) s
        scores = (asked @ known.mT).masked_fill(~seen, -math.inf)
        return (scores.softmax(-1) @ told).flatten(2, 3)

    def _across(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The first or the last key of every stretch, and the query's own."""
        each = queries.shape[2] // keys.shape[2]
        shared_keys, shared_values = (self._ends(x) for x in (keys, values))  # b heads s e
        own_keys, own_values = (x.repeat_interleave(each, 2) for x in (keys, values))
        own = (queries * own_keys).sum(-1, keepdim=True)
        own = own.masked_fill(~self.itself.repeat_interleave(each, 1)[..., None], -math.inf)
        attention = torch.cat([queries @ shared_keys.mT, own], -1).softmax(-1)
        return attention[..., : self.s] @ shared_values + attention[..., self.s :] * own_values

    def _ends(self, x: Tensor) -> Tensor:
        stretches = x.unflatten(2, (self.s, self.s))
        ends = [stretches[:, i, :, 0 if rtl else -1] for i, rtl in enumerate(self.first_rtl)]
        return torch.stack(ends, 1)


def _sparse_heads(x: Tensor, chosen: tuple[int, ...]) -> Tensor:
    """Not `x[:, chosen]`, which sends its indices from the host at every call: a step with that cannot be recorded."""
    return torch.stack([x[:, i] for i in chosen], 1)
