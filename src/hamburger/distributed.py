"""Sums and random draws over ranks, so that data-parallel runs match one process on the global batch.

Everything here also works without torch.distributed, as rank 0 of 1. A `group` of None means all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size(group: Any = None) -> int:
    """Return the number of processes."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def sum_over_ranks(x: Tensor, group: Any = None) -> Tensor:
    """Return the sum over all ranks, without a gradient; with one rank, the input itself. Every rank has equal bits."""
    if world_size(group) == 1:
        return x
    x = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def mean_over_samples(x: Tensor) -> Tensor:
    """Return the mean over the first axis on all ranks, without a gradient.   b ...   ->   ..."""
    total, count = x.sum(0), x.new_tensor(float(x.shape[0]))
    if world_size() > 1:  # sums and counts, not means: ranks may hold batches of different sizes
        packed = sum_over_ranks(torch.cat([total.flatten(), count[None]]))
        total, count = packed[:-1].view_as(total), packed[-1]
    return total / count


def gather_objects(value: Any) -> list[Any]:
    """Return the values of all ranks, in order of rank; all must call this together."""
    values = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value)
    return values


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return sum_over_ranks(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _SumOverRanks.apply(grad, ctx.group), None


def sum_over_ranks_with_gradient(x: Tensor, group: Any = None) -> Tensor:
    """Return the sum over all ranks. Its gradient is that of the summed losses of all ranks."""
    return x if world_size(group) == 1 else _SumOverRanks.apply(x, group)


def draw_for_global_batch(draw: Callable[[int], Tensor], b: int) -> Tensor:
    """Return this rank's b rows of what one process would draw for the global batch.

    Every rank draws all rows from the same generator state and keeps its own.
    """
    if world_size() == 1:
        return draw(b)
    return draw(world_size() * b)[rank() * b : (rank() + 1) * b]


def draw_for_shards(draw: Callable[[int], Tensor], b: int, group: Any) -> Tensor:
    """Return the b rows of `draw_for_global_batch` where the processes of `group` hold parts of the same b samples.

    The groups divide all processes as the axes of a mesh do. The first process of a group sends the others its rows,
    so that they are equal even where generators differ.
    """
    ranks = dist.get_process_group_ranks(group)
    first, stride = ranks[0], ranks[1] - ranks[0] if len(ranks) > 1 else 1
    index = first // (stride * len(ranks)) * stride + first % stride  # of this group, in order of first ranks
    rows = draw(world_size() // len(ranks) * b)[index * b : (index + 1) * b].contiguous()
    if len(ranks) > 1:
        dist.broadcast(rows, src=first, group=group)
    return rows


def is_equal_on_all_ranks(x: Tensor) -> bool:
    """Whether every rank holds the same values, as `draw_for_global_batch` requires of the generators."""
    if world_size() == 1:
        return True
    low, high = x.clone(), x.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return bool(torch.equal(low, high))


def global_mean(loss: Tensor, count: Tensor) -> Tensor:
    """A sum over this process's items as a mean over those of all: DDP averages gradients over the processes.

    `count` is the number of items of this process; processes may have different numbers. No items at all give 0, not
    NaN.
    """
    return loss * world_size() / sum_over_ranks(count).clamp_min(1)


def micro_batch_shares(counts: Sequence[Tensor]) -> Tensor:
    """Each micro-batch's share of the items of the global batch, from this process's counts; they sum to 1."""
    totals = sum_over_ranks(torch.stack(list(counts))).float()
    return totals / totals.sum().clamp_min(1)
