"""Disparities as pictures: 16-bit PNGs for machines, colours for eyes."""

from __future__ import annotations

import io

import torch
from torch import Tensor

FINEST = 256  # steps a pixel, as KITTI has it
# from far to near, each lighter than the one before, so that grey-scale readers see the same order
STOPS = ((16, 10, 50), (52, 52, 148), (40, 120, 160), (90, 175, 130), (205, 205, 90), (255, 250, 220))
UNKNOWN_COLOUR = (128, 128, 128)


def steps_per_pixel(reach: float) -> int:
    """The finest power of two, at most 256, with which 16 bits hold every disparity up to `reach`."""
    scale = FINEST
    while scale > 1 and reach * scale > 65535:
        scale //= 2
    return scale


def disparity_png(disparity: Tensor, scale: int) -> bytes:
    """h w, pixels   ->   a 16-bit PNG of scale times the disparity, at least 1: 0 is for unknown ones"""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    values = (disparity.double() * scale).round().clamp(1, 65535).to(torch.int32).cpu().numpy().astype("uint16")
    said = PngInfo()
    said.add_text("disparity_scale", str(scale))
    return _png(Image.fromarray(values), pnginfo=said)


def coloured(disparity: Tensor, highest: float) -> Tensor:
    """From dark (0, far) to light (`highest`, near); grey where it is 0, unknown.   h w   ->   3 h w uint8"""
    stops = torch.tensor(STOPS, dtype=torch.float32)
    place = (disparity.float().cpu() / max(highest, 1e-6)).clamp(0, 1) * (len(STOPS) - 1)
    low = place.floor().long().clamp(max=len(STOPS) - 2)
    mixed = torch.lerp(stops[low], stops[low + 1], (place - low)[..., None]).round().to(torch.uint8)
    unknown = (disparity <= 0).cpu()[..., None]
    return torch.where(unknown, torch.tensor(UNKNOWN_COLOUR, dtype=torch.uint8), mixed).movedim(2, 0).contiguous()


def coloured_png(disparity: Tensor, highest: float) -> bytes:
    from PIL import Image

    return _png(Image.fromarray(coloured(disparity, highest).movedim(0, 2).contiguous().numpy()))


def _png(image: object, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", **options)  # type: ignore[attr-defined]
    return buffer.getvalue()
