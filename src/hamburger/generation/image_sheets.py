"""Generated images as bytes, sheets and PNG files."""

from __future__ import annotations

import io
import math
from pathlib import Path

import torch
from torch import Tensor

from hamburger.errors import InputError, ShapeError, check_count
from hamburger.files import write_atomically


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


# ----------------------------------------------------------------------------------------------------------------------
# Generated images as pictures: bytes, sheets of many, and PNG files.


GAP = 2  # pixels between the images of a sheet
PAPER = 255


def to_bytes(images: Tensor) -> Tensor:
    """b 3 h w in [-1, 1]   ->   b 3 h w, uint8: what training's own scaling came from. NaN and infinity are refused."""
    return rounded("to_bytes", images)


def sheet(images: Tensor, *, columns: int | None = None) -> Tensor:
    """Images in rows, with white between them; as square as can be unless `columns` is said.   b 3 h w   ->   3 H W"""
    if images.dim() != 4 or images.shape[1] != 3 or images.dtype != torch.uint8 or not len(images):
        raise ShapeError(f"sheet: needs at least one image, b 3 h w in uint8, got {images.dtype} {tuple(images.shape)}")
    b, _, h, w = images.shape
    columns = math.ceil(math.sqrt(b)) if columns is None else columns
    check_count("sheet", "columns", columns, least=1)
    rows = -(-b // columns)
    made = torch.full((3, rows * (h + GAP) - GAP, columns * (w + GAP) - GAP), PAPER, dtype=torch.uint8)
    for i, image in enumerate(images.cpu()):
        top, left = (i // columns) * (h + GAP), (i % columns) * (w + GAP)
        made[:, top : top + h, left : left + w] = image
    return made


def write_png(path: Path, image: Tensor) -> None:
    """3 h w, uint8; the file is whole or not there."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image.movedim(0, 2).contiguous().cpu().numpy()).save(buffer, format="PNG")
    write_atomically(path, buffer.getvalue())
