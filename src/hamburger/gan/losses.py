"""The hinge losses of all these papers (Lim & Ye, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.precision import widen
from hamburger.shapes import check_shapes


def discriminator_hinge(real: Tensor, made: Tensor) -> Tensor:
    """mean of max(0, 1 - D(real)) + mean of max(0, 1 + D(made)).   real: b, made: m   ->   one number"""
    check_shapes("discriminator_hinge", real=(real, "b"), made=(made, "m"))
    return torch.relu(1 - widen(real)).mean() + torch.relu(1 + widen(made)).mean()


def generator_hinge(made: Tensor) -> Tensor:
    """-mean of D(made).   b   ->   one number"""
    check_shapes("generator_hinge", made=(made, "b"))
    return -widen(made).mean()
