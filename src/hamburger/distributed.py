"""Several processes that behave as one with the joined batch; all of it also works alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world() > 1 else 0


def total(x: Tensor) -> Tensor:
    """The sum over all processes, without a gradient; the input itself where there is one process."""
    if world() == 1:
        return x
    x = x.detach().clone()
    dist.all_reduce(x)
    return x


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return total(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return total(grad)


def summed(x: Tensor) -> Tensor:
    """The sum over all processes, with its gradient: that of the losses of all processes, added up."""
    return x if world() == 1 else _Summed.apply(x)


def joined_draw(draw: Callable[[int], Tensor], b: int) -> Tensor:
    """This process's b rows of what one process would have drawn for the joined batch.

    Every process draws for all of them from the same generator state and keeps its own part.
    """
    if world() == 1:
        return draw(b)
    return draw(world() * b)[rank() * b : (rank() + 1) * b]


def same_everywhere(x: Tensor) -> bool:
    """Whether every process holds the same values: what joined draws rely on."""
    if world() == 1:
        return True
    low, high = x.clone(), x.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return bool(torch.equal(low, high))
