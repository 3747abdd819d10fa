"""Half precision where it is asked for and safe, float32 where sums are long."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """What autocast turns products into there; None where it is off."""
    # the meta device has no autocast and asking raises; torch's own question for that cannot be compiled in torch 2.11
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def full_precision(device_type: str) -> AbstractContextManager[object]:
    """Autocast off, where it is on."""
    if autocast_dtype(device_type) is None:
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def widen(x: Tensor) -> Tensor:
    """Half precision to float32; wider types as they are."""
    return x.float() if x.dtype in HALF else x
