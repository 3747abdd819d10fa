"""Weights that make data-parallel runs with micro-batches match a single process on the global batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hamburger import distributed


def global_mean(loss: Tensor, count: Tensor) -> Tensor:
    """A sum over this process's items as a mean over those of all: DDP averages gradients over the processes.

    `count` is the number of items of this process; processes may have different numbers. No items at all give 0, not
    NaN.
    """
    return loss * distributed.world_size() / distributed.sum_over_ranks(count).clamp_min(1)


def micro_batch_shares(counts: Sequence[Tensor]) -> Tensor:
    """Each micro-batch's share of the items of the global batch, from this process's counts; they sum to 1."""
    totals = distributed.sum_over_ranks(torch.stack(list(counts))).float()
    return totals / totals.sum().clamp_min(1)
