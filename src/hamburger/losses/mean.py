"""The mean that one process with the joined batch would take."""

from __future__ import annotations

from torch import Tensor

from hamburger import distributed


def joined_mean(loss: Tensor, count: Tensor) -> Tensor:
    """`loss`, summed over this process's things, divided so that DDP's mean of gradients is that of the joined batch.

    `count` is how many things this process has; processes may have different numbers. None at all gives zero, not NaN.
    """
    return loss * distributed.world() / distributed.total(count).clamp_min(1)
