"""Generated images as bytes, grids of images and PNG files."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from hamburger.errors import InputError
from hamburger.files import write_atomically
from hamburger.generation.model import Generator
from hamburger.generation.sampling import sample
from hamburger.training.image_files import encode_image

GAP = 2  # pixels between the images of a grid
BACKGROUND = 255
ROWS, COLUMNS = 8, 10  # of a grid of a run's samples: classes, and images of each
SAMPLE_SEED = 0  # the same latents in every run, so that grids of different runs can be compared


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
    b, _, h, w = images.shape
    columns = math.ceil(math.sqrt(b)) if columns is None else columns
    rows = -(-b // columns)
    grid = torch.full((3, rows * (h + GAP) - GAP, columns * (w + GAP) - GAP), BACKGROUND, dtype=torch.uint8)
    for i, image in enumerate(images.cpu()):
        top, left = (i // columns) * (h + GAP), (i % columns) * (w + GAP)
        grid[:, top : top + h, left : left + w] = image
    return grid


def draw_class_rows(generator: Generator) -> Tensor:
    """A grid with a row of images for each of the first classes, from the same latents every time.   ->   3 H W"""
    classes = torch.arange(min(ROWS, generator.num_classes)).repeat_interleave(COLUMNS)
    return tile_images(to_bytes(sample(generator, len(classes), seed=SAMPLE_SEED, labels=classes)), columns=COLUMNS)


def write_png(path: Path, image: Tensor) -> None:
    """Write an image (3 h w, uint8) to a file that is either complete or not there."""
    write_atomically(path, encode_image(image.movedim(0, 2).contiguous().cpu().numpy(), "PNG"))
