"""YLG's masked attention without the masked part: what every query sees, and nothing else, in small dense products.

In the order of ranks (see `ylg_masks`) the n keys are s stretches of s. A head of the first kind sees within its own
stretch; one of the second kind sees s keys that are the same for all, and itself. So n s scores a head take the place
of n n; the values are those of the dense form, whose hidden scores are too low to count.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hamburger.gan.ylg_masks import HEADS, enumeration, query_cells

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
        near = self._within(*(_heads(x, FIRST) for x in (queries, keys, values)))
        far = self._across(*(_heads(x, SECOND) for x in (queries, keys, values)))
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


def _heads(x: Tensor, chosen: tuple[int, ...]) -> Tensor:
    """Not `x[:, chosen]`, which sends its indices from the host at every call: a step with that cannot be recorded."""
    return torch.stack([x[:, i] for i in chosen], 1)
