"""A few numbers from the host to the device, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(values: Sequence[object], device: torch.device) -> Tensor:
    """As `torch.tensor(values, device=device)`, which on a GPU waits until all work before it is done."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
