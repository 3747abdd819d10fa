"""Generated images as bytes, grids of images and PNG files."""

from __future__ import annotations

import io
import math
from pathlib import Path

import torch
from torch import Tensor

from hamburger.errors import InputError, ShapeError, check_count
from hamburger.files import write_atomically

GAP = 2  # pixels between the images of a grid
BACKGROUND = 255


def to_bytes(images: Tensor) -> Tensor:
    """A generator's output, rounded as an image file rounds it.   b 3 h w in [-1, 1]   ->   b 3 h w, uint8

    Values outside are clamped. NaN and infinity are refused, since they would become some grey, black or white.
    """
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise InputError("to_bytes: images must be a floating point tensor in [-1, 1]")
    if not images.isfinite().all():
        raise InputError(
            "to_bytes: images have NaN or infinity; the network that made them has diverged, or its weights are damaged"
        )
    return ((images.detach().float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def tile_images(images: Tensor, *, columns: int | None = None) -> Tensor:
    """Images in a grid with white gaps, about square unless `columns` is given.   b 3 h w, uint8   ->   3 H W"""
    if images.dim() != 4 or images.shape[1] != 3 or images.dtype != torch.uint8 or not len(images):
        raise ShapeError(
            f"tile_images: images must be 'b 3 h w', uint8, b >= 1, got {images.dtype} {tuple(images.shape)}"
        )
    b, _, h, w = images.shape
    columns = math.ceil(math.sqrt(b)) if columns is None else columns
    check_count("tile_images", "columns", columns, least=1)
    rows = -(-b // columns)
    grid = torch.full((3, rows * (h + GAP) - GAP, columns * (w + GAP) - GAP), BACKGROUND, dtype=torch.uint8)
    for i, image in enumerate(images.cpu()):
        top, left = (i // columns) * (h + GAP), (i % columns) * (w + GAP)
        grid[:, top : top + h, left : left + w] = image
    return grid


def write_png(path: Path, image: Tensor) -> None:
    """Write an image (3 h w, uint8) to a file that is either complete or not there."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image.movedim(0, 2).contiguous().cpu().numpy()).save(buffer, format="PNG")
    write_atomically(path, buffer.getvalue())
