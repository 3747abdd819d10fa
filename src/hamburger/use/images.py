"""Photographs as a network wants them: 3 h w, uint8, RGB, upright; or an error that names the file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hamburger.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
FORMATS = ("JPEG", "PNG", "WEBP")
SIXTEEN_BITS = ("I", "I;16", "I;16L", "I;16B", "I;16N")


def read_image(path: Path) -> Tensor:
    """One JPEG, PNG or WebP file as 3 h w uint8.

    The EXIF rotation is applied. Grey becomes three equal channels, 16 bits become 8, a palette or CMYK becomes RGB,
    transparent pixels lie over white, and of an animation the first frame counts.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        # Pillow warns of odd metadata and of large pictures; beyond its hard limit it raises
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                image.load()
                return _tensor(_rgb(_upright(image)))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, not an image") from None
    except PermissionError:
        raise InputError(f"{path}: may not be read; check its permissions") from None
    except UnidentifiedImageError:
        raise InputError(f"{path}: is no JPEG, PNG or WebP image; convert it first") from None
    except Image.DecompressionBombError as bomb:
        raise InputError(f"{path}: too large to be opened safely ({bomb}); scale it down or cut it first") from None
    except MemoryError:
        raise InputError(f"{path}: does not fit into memory; scale it down or cut it first") from None
    except Exception as broken:  # a decoder meets a damaged file with any exception there is
        raise InputError(f"{path}: damaged or incomplete ({broken}); export or copy it again") from broken


def _upright(image: Image.Image) -> Image.Image:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # unreadable metadata say nothing of a rotation, and the picture itself has been decoded
        return image


def _rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode in SIXTEEN_BITS:
        return _eight_bits(image).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Pillow's own conversion would cut at 255 and leave white."""
    import numpy as np
    from PIL import Image

    values = np.asarray(image).astype(np.int64).clip(0, 65535)
    return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))


def _tensor(image: Image.Image) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.array(image)).movedim(-1, 0).contiguous()
