"""Photographs as a network wants them, read exactly as those it was trained on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from hamburger.data import images
from hamburger.errors import DataError, InputError

SUFFIXES = images.SUFFIXES
Read = TypeVar("Read")


def read_square(path: Path, size: int) -> Tensor:
    """The largest square in the middle of such a file, in that size.   ->   3 size size uint8"""
    return torch.from_numpy(_read(lambda: images.read_square(path, size)))


def read_image(path: Path) -> Tensor:
    """One JPEG, PNG or WebP file as 3 h w uint8 RGB; what cannot be read raises with its path.

    The EXIF rotation is applied. Grey becomes three equal channels, 16 bits become 8, a palette or CMYK becomes RGB,
    transparent pixels lie over white, and of an animation the first frame counts.
    """
    return _read(lambda: images.read_image(path))


def _read(read: Callable[[], Read]) -> Read:
    try:
        with warnings.catch_warnings():  # of odd metadata, and of large pictures; beyond its hard limit Pillow raises
            warnings.simplefilter("ignore")
            return read()
    except DataError as bad:
        raise InputError(str(bad)) from None
