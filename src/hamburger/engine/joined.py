"""What the processes and the accumulated parts of a batch must do to be as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import Tensor

from hamburger import distributed
from hamburger.heads.base import Head
from hamburger.losses.pixels import IGNORE

if TYPE_CHECKING:
    from hamburger.data.batches import Batch

PIXELS = ""  # what a term averages over unless its head says otherwise


class Shares:
    """What each accumulated part weighs in the mean over the whole batch, term by term."""

    def __init__(self, parts: Sequence[Batch], head: Head) -> None:
        counts = [{PIXELS: (part.labels != IGNORE).sum(), **head.counts(part.labels)} for part in parts]
        self.shares: dict[str, Tensor] = {}
        for name in counts[0] if len(parts) > 1 else ():
            own = distributed.total(torch.stack([count[name] for count in counts])).float()
            self.shares[name] = own / own.sum().clamp_min(1)

    def weighted(self, terms: dict[str, Tensor], part: int) -> dict[str, Tensor]:
        """The terms of one part, so that their sums over the parts are those of the whole batch."""
        if not self.shares:  # the part is the batch
            return terms
        return {name: value * self.shares.get(name, self.shares[PIXELS])[part] for name, value in terms.items()}


def lost_peer(trouble: RuntimeError) -> bool:
    """Whether a collective failed because a process at its other end is gone."""
    said = str(trouble)
    return isinstance(trouble, torch.distributed.DistError) or "by peer" in said or "Broken pipe" in said


def gathered(ids: list[str]) -> list[str]:
    """The ids of all processes; all must call this together."""
    if distributed.world() == 1:
        return ids
    found: list[Any] = [None] * distributed.world()
    torch.distributed.all_gather_object(found, ids)
    return [name for each in found for name in each]
