"""Autocast: which dtype it uses, how to leave it, and float32 for half-precision tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that autocast uses for products on the device; None where it is off."""
    # the meta device has no autocast and asking raises; torch's own test for that cannot be compiled in torch 2.11
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def full_precision(device_type: str) -> AbstractContextManager[object]:
    """Context manager: turn autocast off, if it is on."""
    if autocast_dtype(device_type) is None:
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def widen(x: Tensor) -> Tensor:
    """Return a half-precision tensor as float32, any other unchanged."""
    return x.float() if x.dtype in HALF else x
