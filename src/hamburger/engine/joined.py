"""What the processes and the accumulated parts of a batch must do to be as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import Tensor

from hamburger import distributed
from hamburger.losses.pixels import IGNORE

if TYPE_CHECKING:
    from hamburger.data.batches import Batch


def shares(parts: Sequence[Batch]) -> list[Tensor | None]:
    """What each accumulated part weighs in the mean over the labelled pixels of the whole batch; None for all of it."""
    if len(parts) == 1:
        return [None]
    labelled = distributed.total(torch.stack([(part.labels != IGNORE).sum() for part in parts])).float()
    return list(labelled / labelled.sum().clamp_min(1))


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
