"""Photographs as a network wants them, read exactly as those it was trained on."""

from __future__ import annotations

import warnings
from pathlib import Path

from torch import Tensor

from hamburger.data import images
from hamburger.errors import DataError, InputError

SUFFIXES = images.SUFFIXES


def read_image(path: Path) -> Tensor:
    """One JPEG, PNG or WebP file as 3 h w uint8 RGB; what cannot be read raises with its path.

    The EXIF rotation is applied. Grey becomes three equal channels, 16 bits become 8, a palette or CMYK becomes RGB,
    transparent pixels lie over white, and of an animation the first frame counts.
    """
    try:
        with warnings.catch_warnings():  # of odd metadata, and of large pictures; beyond its hard limit Pillow raises
            warnings.simplefilter("ignore")
            return images.read_image(path)
    except DataError as bad:
        raise InputError(str(bad)) from None
