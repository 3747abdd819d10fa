"""Images read in parts: TIFF files tile by tile, other files and tensors as a whole."""

from __future__ import annotations

import io
import logging
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from hamburger.errors import HamburgerError, InputError, install_extra, shorten
from hamburger.files import open_regular
from hamburger.inference.predict_files import read_image
from hamburger.training.image_files import check_tags, convert_to_rgb
from hamburger.training.safe_files import MAX_PIXELS, describe

MAX_LARGE_PIXELS = 2**34  # of a TIFF; its label needs as many bytes on disk
# tags of TIFF, see its specification
MINISBLACK, RGB, YCBCR = 1, 2, 6
NONE, LZW, JPEG, DEFLATE, PACKBITS, OLD_DEFLATE = 1, 5, 7, 8, 32773, 32946
COMPRESSIONS = {NONE, LZW, JPEG, DEFLATE, PACKBITS, OLD_DEFLATE}
NEED_IMAGECODECS = {LZW, JPEG, PACKBITS}
UNASSOCIATED_ALPHA = 2


class LargeImage(Protocol):
    """An RGB image of which rectangles can be read.

    >>> image.read(0, 256, 512, 1024).shape                             # rows 0 to 255, columns 512 to 1023
    torch.Size([3, 256, 512])
    """

    height: int
    width: int

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor:
        """The pixels of a rectangle.   ->   3 h w uint8"""
        ...


def open_large_image(image: object) -> LargeImage:
    """Return an image to read in parts: a TIFF file, any other image file, or a tensor 3 h w uint8.

    Only of a TIFF are the parts read one by one, for which the package tifffile is needed; a file of any other format
    is decoded as a whole, with three bytes a pixel.
    """
    if isinstance(image, Tensor):
        if image.dtype != torch.uint8 or image.dim() != 3 or image.shape[0] != 3 or image.numel() == 0:
            kind = f"{image.dtype} {tuple(image.shape)}"
            raise InputError(f"the image must be a uint8 tensor of shape (3, h, w), got {kind}")
        return WholeImage(image)
    if not isinstance(image, (str, Path)):
        if all(hasattr(image, name) for name in ("height", "width", "read")):
            return image  # type: ignore[return-value]
        raise InputError(
            f"the image must be a path, a uint8 tensor (3, h, w), or an object with height, width and read, "
            f"got {shorten(image)}"
        )
    path = Path(image)
    return TiffImage(path) if path.suffix.lower() in (".tif", ".tiff") else WholeImage(read_image(path))


class WholeImage:
    """An image in memory.   3 h w uint8"""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels, self.height, self.width = pixels, pixels.shape[1], pixels.shape[2]

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor:
        return self.pixels[:, top:bottom, left:right]


class TiffImage:
    """The first page of a TIFF file, grey or RGB, of 8 or 16 bits, with or without an alpha channel.

    Every read decodes the tiles or strips that it touches, so tiles are faster than strips of a wide image.
    """

    def __init__(self, path: Path) -> None:
        try:
            import tifffile
        except ImportError:
            remedy = install_extra("tiff")
            raise InputError(f"{path}: reading a TIFF in parts needs the package tifffile; {remedy}") from None
        logging.getLogger("tifffile").addHandler(logging.NullHandler())  # its warnings would go to the terminal
        self.path = path
        try:
            with open_regular(path) as file:
                check_tags(path, file)
            with tifffile.TiffFile(path) as tiff:
                self._page: Any = tiff.pages[0].aspage()
                self._starts, self._lengths = list(self._page.dataoffsets), list(self._page.databytecounts)
                self._tables = self._page.jpegtables
            self._check_page()
        except HamburgerError:
            raise
        except Exception as error:  # the reader raises any exception on a damaged file
            raise InputError(f"{path}: damaged or not a TIFF ({describe(error)})") from None

    def _check_page(self) -> None:
        page = self._page
        self.height, self.width = int(page.imagelength), int(page.imagewidth)
        self._tile = (
            (int(page.tilelength), int(page.tilewidth))
            if page.is_tiled
            else (min(int(page.rowsperstrip), self.height), self.width)
        )
        self._across = -(-self.width // max(1, self._tile[1]))
        self._tile_bytes = self._tile[0] * self._tile[1] * int(page.samplesperpixel) * int(page.bitspersample) // 8
        orientation = page.tags.get("Orientation")
        problems = {
            "it has no pixels": min(self.height, self.width, *self._tile) < 1,
            f"its {self.width} x {self.height} pixels are more than {MAX_LARGE_PIXELS:,}": (
                self.height * self.width > MAX_LARGE_PIXELS
            ),
            f"its tiles or strips of {self._tile[1]} x {self._tile[0]} pixels are more than {MAX_PIXELS:,}": (
                self._tile[0] * self._tile[1] > MAX_PIXELS
            ),
            "its colours are not grey or RGB": page.photometric not in (MINISBLACK, RGB, YCBCR),
            f"it has {shorten(page.samplesperpixel)} channels": page.samplesperpixel not in (1, 2, 3, 4),
            f"its numbers are {shorten(page.dtype)}, not 8 or 16 bits": page.dtype not in (np.uint8, np.uint16),
            "its channels are stored one after the other": page.planarconfig != 1,
            f"its compression {shorten(page.compression)} is not supported": page.compression not in COMPRESSIONS,
            "it is to be rotated when it is shown": orientation is not None and orientation.value != 1,
            "its list of tiles is incomplete": (
                min(len(self._starts), len(self._lengths)) < self._across * -(-self.height // self._tile[0])
            ),
        }
        for problem, present in problems.items():
            if present:
                raise InputError(f"{self.path}: {problem}; save it as RGB TIFF with tiles of 512 x 512 pixels")
        if page.compression in NEED_IMAGECODECS and find_spec("imagecodecs") is None:
            raise InputError(
                f"{self.path}: its compression {page.compression.name} needs the package imagecodecs; install it, or "
                "save the file with deflate"
            )

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor:
        pixels = np.zeros((bottom - top, right - left, 3), np.uint8)
        rows, columns = self._tile
        with open_regular(self.path) as file:
            for i in range(top // rows, -(-bottom // rows)):
                for j in range(left // columns, -(-right // columns)):
                    tile = self._decode(file, i * self._across + j)
                    y, x = i * rows, j * columns
                    inside = tile[max(0, top - y) : bottom - y, max(0, left - x) : right - x]
                    y, x = max(y, top) - top, max(x, left) - left
                    pixels[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
        return torch.from_numpy(pixels.transpose(2, 0, 1))

    def _decode(self, file: BinaryIO, index: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """One tile or strip.   ->   h w 3"""
        page, start, length = self._page, int(self._starts[index]), int(self._lengths[index])
        try:
            # before decoding: what the tile cannot need is an attempt to fill the memory
            if length > self._tile_bytes + self._tile_bytes // 4 + 2**16:
                raise ValueError(f"tile {index} has {length:,} bytes")
            if not length:  # a tile without data, as GDAL writes them, is black
                return np.zeros((*self._tile, 3), np.uint8)
            file.seek(start)
            data = file.read(length)
            if page.compression in (DEFLATE, OLD_DEFLATE):
                if len(zlib.decompressobj().decompress(data, self._tile_bytes + 1)) > self._tile_bytes:
                    raise ValueError(f"tile {index} is larger than its page says")
            elif page.compression == JPEG:
                self._check_jpeg(data)
            return self._to_rgb(page.decode(data, index, jpegtables=self._tables)[0][0])
        except Exception as error:  # decoders raise any exception on damaged data
            raise InputError(f"{self.path}: tile {index} is damaged ({describe(error)})") from None

    def _to_rgb(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """As Pillow opens the same file: the high bytes of 16-bit colours, transparent pixels on white."""
        from PIL import Image

        channels = pixels.shape[2]
        if channels in (2, 4) and UNASSOCIATED_ALPHA not in self._page.extrasamples:
            channels -= 1  # a channel for something else than colour
        if channels == 1:
            return convert_to_rgb(Image.fromarray(np.ascontiguousarray(pixels[..., 0])))
        pixels = pixels >> 8 if pixels.dtype == np.uint16 else pixels
        return convert_to_rgb(Image.fromarray(np.ascontiguousarray(pixels[..., :channels], np.uint8)))

    def _check_jpeg(self, data: bytes) -> None:
        from PIL import Image

        with Image.open(io.BytesIO(data), formats=["JPEG"]) as header:
            if header.height > self._tile[0] or header.width > self._tile[1]:
                raise ValueError("its JPEG is larger than the tile")
