"""Weights that make data-parallel runs with micro-batches match a single process on the global batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch import Tensor

from hamburger import distributed

LABELLED_PIXELS = ""  # what a term averages over unless its head says otherwise


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


# ----------------------------------------------------------------------------------------------------------------------
# The mean that one process with the joined batch would take.


def global_mean(loss: Tensor, count: Tensor) -> Tensor:
    """`loss`, summed over this process's things, divided so that DDP's mean of gradients is that of the joined batch.

    `count` is how many things this process has; processes may have different numbers. None at all gives zero, not NaN.
    """
    return loss * distributed.world() / distributed.total(count).clamp_min(1)
