"""From what a generator makes to the bytes of a picture, the same way wherever they are looked at or measured."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.errors import InputError


def rounded(call: str, images: Tensor) -> Tensor:
    """As an image file would round it.   in [-1, 1]    ->    uint8, 0 to 255

    Values outside are clamped; NaN and infinity are refused, since they would become some grey, black or white.
    """
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise InputError(f"{call}: images must be a floating point tensor in [-1, 1]")
    if not images.isfinite().all():
        raise InputError(
            f"{call}: images have NaN or infinity; the network that made them has diverged, or its weights are damaged"
        )
    return ((images.detach().float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
