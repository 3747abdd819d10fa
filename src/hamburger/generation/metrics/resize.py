"""Resize images to the input size of an extractor. The resizer changes distances, so every result names it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import InputError, ShapeError, check_choice


def _antialiased(x: Tensor, size: int) -> Tensor:
    return F.interpolate(x, (size, size), mode="bilinear", align_corners=False, antialias=True)


def _bilinear(x: Tensor, size: int) -> Tensor:
    return F.interpolate(x, (size, size), mode="bilinear", align_corners=False)


def _tensorflow1(x: Tensor, size: int) -> Tensor:
    """TensorFlow 1's bilinear resize: output pixel i is at i * (input / output), which ignores pixel centres."""
    for axis in (2, 3):
        position = torch.arange(size, device=x.device, dtype=torch.float32) * (x.shape[axis] / size)
        low = position.floor().long()
        high = (low + 1).clamp_max(x.shape[axis] - 1)
        weight = (position - low).unflatten(0, (-1, 1) if axis == 2 else (1, -1))
        x = torch.lerp(x.index_select(axis, low), x.index_select(axis, high), weight)
    return x


RESIZERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "bilinear-antialias": _antialiased,  # averages where it shrinks; where it enlarges it is "bilinear"
    "bilinear": _bilinear,  # the package pytorch-fid; aliases where it shrinks
    "bilinear-tf1": _tensorflow1,  # TensorFlow 1, hence TF-GAN and the first published numbers
}


def resize(images: Tensor, size: int, resizer: str = "bilinear-antialias") -> Tensor:
    """Images as float32 in [0, 1], resized and clamped, not rounded again.   b 3 h w, uint8    ->    b 3 size size

    The aspect ratio is not kept: crop before. Images that already have the size are only divided by 255.
    """
    check_choice("resize", "resizer", resizer, RESIZERS)
    check_uint8_images("resize", images)
    x = images.float() / 255
    if x.shape[2:] == (size, size) or not x.shape[0]:
        return x.new_empty(0, 3, size, size) if not x.shape[0] else x
    return RESIZERS[resizer](x, size).clamp(0, 1)


def check_uint8_images(call: str, images: Tensor) -> None:
    """Raise unless the images are b 3 h w, uint8."""
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise InputError(
            f"{call}: images must be uint8, 0 to 255, so that real and generated ones are rounded alike (got {got}); "
            f"convert a generator's output in [-1, 1] with to_bytes(images)"
        )
    if images.dim() != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise ShapeError(f"{call}: images must be 'b 3 h w', got {tuple(images.shape)}")
