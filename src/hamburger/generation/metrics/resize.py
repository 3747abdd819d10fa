"""Images to the one size that an extractor takes. The resizer changes distances, so every result names it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import InputError, ShapeError, check_choice
from hamburger.generation.image_sheets import rounded


def _antialiased(x: Tensor, size: int) -> Tensor:
    return F.interpolate(x, (size, size), mode="bilinear", align_corners=False, antialias=True)


def _plain(x: Tensor, size: int) -> Tensor:
    return F.interpolate(x, (size, size), mode="bilinear", align_corners=False)


def _tensorflow1(x: Tensor, size: int) -> Tensor:
    """Output pixel i lies at i * (input / output), not at the centres' place: half a pixel off, as it was in 2017."""
    for axis in (2, 3):
        place = torch.arange(size, device=x.device, dtype=torch.float32) * (x.shape[axis] / size)
        low = place.floor().long()
        high = (low + 1).clamp_max(x.shape[axis] - 1)
        share = (place - low).unflatten(0, (-1, 1) if axis == 2 else (1, -1))
        x = torch.lerp(x.index_select(axis, low), x.index_select(axis, high), share)
    return x


RESIZERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "bilinear-antialias": _antialiased,  # averages where it shrinks; where it enlarges it is "bilinear"
    "bilinear": _plain,  # the package pytorch-fid; aliases where it shrinks
    "bilinear-tf1": _tensorflow1,  # TensorFlow 1, hence TF-GAN and the first published numbers
}


def resize(images: Tensor, size: int, resizer: str = "bilinear-antialias") -> Tensor:
    """Bytes to float32 in [0, 1], then resized and clamped; not rounded again.   b 3 h w, uint8    ->    b 3 size size

    Aspect is not kept: crop before. An image that already has the size is only divided by 255.
    """
    check_choice("resize", "resizer", resizer, RESIZERS)
    check_bytes("resize", images)
    x = images.float() / 255
    if x.shape[2:] == (size, size) or not x.shape[0]:
        return x.new_empty(0, 3, size, size) if not x.shape[0] else x
    return RESIZERS[resizer](x, size).clamp(0, 1)


def check_bytes(call: str, images: Tensor) -> None:
    """b 3 h w, uint8"""
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        what = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise InputError(
            f"{call}: images must be uint8, 0 to 255, so that real and generated ones are rounded alike, got {what}; "
            f"of a generator's output in [-1, 1] take as_bytes(images)"
        )
    if images.dim() != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise ShapeError(f"{call}: images must be 'b 3 h w', got {tuple(images.shape)}")


def as_bytes(images: Tensor) -> Tensor:
    """What a generator makes, rounded as an image file would round it.   in [-1, 1]    ->    uint8, 0 to 255

    Values outside are clamped; NaN and infinity are refused.
    """
    return rounded("as_bytes", images)
