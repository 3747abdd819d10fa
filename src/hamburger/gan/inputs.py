"""What the networks are called with."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.checks import debugging
from hamburger.errors import InputError, ShapeError


def check_classes(call: str, y: Tensor, b: int, num_classes: int) -> None:
    """Whole numbers, one per sample. Their range is read on the CPU, elsewhere under `debug()` (reading syncs)."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.dtype == torch.bool:
        got = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"{call}: the classes must be a tensor of whole numbers, got {got}; pass y.long()")
    if y.shape != (b,):
        raise ShapeError(f"{call}: there must be one class per sample, ({b},), got {tuple(y.shape)}")
    if torch.compiler.is_compiling() or not (y.device.type == "cpu" or debugging()) or not b:
        return
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= num_classes:
        raise InputError(
            f"{call}: classes must lie in 0 ... {num_classes - 1}, got {low} ... {high}; build the networks with "
            f"num_classes={high + 1} or more"
        )
