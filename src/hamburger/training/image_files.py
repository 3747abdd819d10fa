"""Image and label files to tensors, ImageNet normalisation, and label files with their colours."""

from __future__ import annotations

import io
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hamburger.devices import to_device
from hamburger.errors import DataError, install_extra
from hamburger.files import open_regular
from hamburger.training.safe_files import MAX_PIXELS, check_pixels, describe

BAND = 512  # rows that are converted at once
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif")
# JPEG opens MPO too, which many telephones write into a .jpg; HEIF needs the package pillow-heif, AVIF Pillow 11.3
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "HEIF")
KINDS = "JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF or HEIC"
DECODERS = threading.Lock()
# the header of a scan of a JPEG, and that of a segment of EXIF data: Pillow joins those one by one
SCAN = re.compile(rb"\xff\xda\x00[\x08\x0a\x0c\x0e][\x01-\x04]|\xff\xe1..Exif\x00\x00", re.DOTALL)
MAX_SCANS = 64  # encoders write about ten, and one of EXIF data
ORIENTATION, TILE_WIDTH, TILE_LENGTH = 274, 322, 323  # tags of EXIF and TIFF
TAG_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # by type
MAX_TAG_NUMBERS = 2**20  # of tiles or strips
RAW_EXIF, XMP = "Raw profile type exif", "XML:com.adobe.xmp"  # texts of a PNG
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')
REASONS = {
    FileNotFoundError: "missing",
    PermissionError: "may not be read; check its permissions",
    MemoryError: "does not fit into memory",
}

Bytes = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]


def read_image(path: Path) -> Tensor:
    """3 h w, uint8, RGB, upright."""
    with _opened(path) as image:
        return torch.from_numpy(_rgb(_upright(image)).transpose(2, 0, 1))


def read_square(path: Path, size: int) -> Bytes:
    """The largest square in the middle, resized with a triangle filter that averages where it shrinks.   3 size size"""
    from PIL import Image

    with _opened(path) as image:
        pixels = Image.fromarray(_rgb(_upright(image)))
        side = min(pixels.size)
        left, top = (pixels.width - side) // 2, (pixels.height - side) // 2
        if (side, side) != pixels.size:
            pixels = pixels.crop((left, top, left + side, top + side))
        if side != size:
            pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
        return np.array(np.asarray(pixels).transpose(2, 0, 1), order="C")


def resized(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width of an image whose longer side becomes `side`."""
    longer = max(height, width)
    return max(1, round(height * side / longer)), max(1, round(width * side / longer))


def read_indices(path: Path, *, colours: bool = False) -> Bytes:
    """h w, the values of an index map: grey levels, or the indices of a palette.

    An RGB file raises; with `colours` it returns its colours, h w 3.
    """
    with _opened(path) as image:
        if colours and image.mode in ("RGB", "RGBA"):
            return np.array(image.convert("RGB"), np.uint8)
        if image.mode in ("L", "P", "1"):
            return np.array(image, np.uint8)
        if image.mode.startswith("I"):
            values = np.array(image, np.int32)
            if values.min() >= 0 and values.max() <= 255:
                return values.astype(np.uint8)
            raise DataError(f"{path}: 16-bit label with values up to {values.max()}; class indices are 0 ... 255")
        raise DataError(
            f"{path}: a label must be an index map (PNG of mode L or P), this one has mode {image.mode}; save it with "
            f"one channel, or give every class its colour in classes.txt (data set 'folder')"
        )


def read_grey(path: Path) -> npt.NDArray[np.int32]:
    """h w, whole numbers of 8 or 16 bits as the file has them: measurements, no colours. Colours raise."""
    with _opened(path) as image:
        if image.mode == "L" or image.mode.startswith("I"):
            return np.array(image, np.int32)
        raise DataError(f"{path}: has mode {image.mode}; numbers need one grey channel of 8 or 16 bits")


def encode_image(pixels: npt.NDArray[Any], format: str, **options: Any) -> bytes:
    """The content of an image file.   h w or h w 3"""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=format, **options)
    return buffer.getvalue()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from PIL import Image, UnidentifiedImageError

    try:
        with DECODERS:  # Pillow loads them at the first file; other threads would not find them yet
            Image.init()
            if path.suffix.lower() in (".heic", ".heif"):
                _add_heif_decoder(path)
        formats = [name for name in FORMATS if name in Image.OPEN]
        with open_regular(path) as file:
            check_tags(path, file)
            _check_scans(path, file)
            file.seek(0)
            with Image.open(file, formats=formats) as image:
                check_pixels(path, *image.size)  # known from the header; decoding allocates them
                if image.mode == "F":
                    raise DataError(f"{path}: its pixels are floating-point numbers; save 8 or 16 bits per channel")
                tags = getattr(image, "tag_v2", {})  # of a TIFF, whose tiles may be larger than the image
                check_pixels(path, tags.get(TILE_WIDTH, 0), tags.get(TILE_LENGTH, 0))
                image.load()
                yield image
    except DataError:
        raise
    except UnidentifiedImageError:
        what = "empty file" if path.stat().st_size == 0 else f"no {KINDS} image"
        raise DataError(f"{path}: {what}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # Pillow's own limit is higher
        raise DataError(f"{path}: has more than the {MAX_PIXELS:,} pixels that are read; resize it") from None
    except Exception as error:  # decoders raise any exception on a damaged file
        reason = REASONS.get(type(error), f"damaged or incomplete ({describe(error)})")
        raise DataError(f"{path}: {reason}") from error


def _add_heif_decoder(path: Path) -> None:
    try:
        import pillow_heif
    except ImportError:
        raise DataError(f"{path}: reading HEIC needs the package pillow-heif; {install_extra('heic')}") from None
    pillow_heif.register_heif_opener()


def _check_scans(path: Path, file: BinaryIO) -> None:
    """Raise where a JPEG has so many scans that decoding takes minutes: each visits all pixels, and may be empty."""
    file.seek(0)
    if file.read(2) == b"\xff\xd8" and (count := len(SCAN.findall(file.read()))) > MAX_SCANS:
        raise DataError(
            f"{path}: a JPEG of {count} scans and EXIF segments; at most {MAX_SCANS} are read: save it again"
        )


def check_tags(path: Path, file: BinaryIO) -> None:
    """Raise where the tags of a TIFF claim more bytes than the file has: Pillow copies each, and they may overlap.

    Each number of a tag, such as the place of a tile, becomes a Python object.
    """
    length = file.seek(0, io.SEEK_END)
    tags = [(count, TAG_BYTES.get(kind, 0)) for _, kind, count, _ in _read_tags(file)]
    if (most := max((count for count, size in tags if size > 1), default=0)) > MAX_TAG_NUMBERS:
        raise DataError(f"{path}: has {most:,} numbers in a tag; at most {MAX_TAG_NUMBERS:,} tiles or strips are read")
    if sum(count * size for count, size in tags) > length:
        raise DataError(f"{path}: damaged or incomplete (its tags claim more than the {length:,} bytes there are)")


def _read_tags(file: BinaryIO) -> Iterator[tuple[int, int, int, int]]:
    """Yield tag, type, count and the first 16 bits of the value, of TIFF or EXIF data; of anything else nothing."""
    file.seek(0)
    header = file.read(16).ljust(16)
    order = {b"II*\0": "<", b"MM\0*": ">", b"II+\0": "<", b"MM\0+": ">"}.get(header[:4])
    if order is None:
        return
    start, entries, entry = ("8xQ", "Q", "HHQH6x") if b"+" in header[:4] else ("4xI", "H", "HHIH2x")
    file.seek(*struct.unpack_from(order + start, header))
    (many,) = struct.unpack(order + entries, file.read(struct.calcsize(order + entries)))
    for _ in range(min(many, 2**16)):
        yield struct.unpack(order + entry, file.read(struct.calcsize(order + entry)))


def _upright(image: Any) -> Any:
    """The image, turned as its EXIF or XMP data say. Pillow's own function copies all tags, which may overlap."""
    from PIL.Image import Transpose

    if image.format == "TIFF" or not {"exif", RAW_EXIF, XMP, "xmp"} & image.info.keys():
        return image  # Pillow has turned a TIFF
    orientation = 1
    with suppress(Exception):  # unreadable metadata say nothing of a rotation, and the image itself has been decoded
        xmp = image.info.get(XMP) or image.info.get("xmp", b"")
        if match := XMP_ORIENTATION.search(xmp.encode() if isinstance(xmp, str) else xmp):
            orientation = int(match[1])
    with suppress(Exception):
        raw = image.info.get(RAW_EXIF, "")
        exif = image.info.get("exif") or bytes.fromhex("".join(raw.split("\n")[3:]))
        tags = _read_tags(io.BytesIO(exif.removeprefix(b"Exif\0\0")))
        orientation = next(value for tag, _, _, value in tags if tag == ORIENTATION)
    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image


def _rgb(image: Any) -> Bytes:
    """Convert in bands of rows, since each conversion copies.   ->   h w 3, a view of an array 3 h w"""
    pixels = np.empty((3, image.height, image.width), np.uint8).transpose(1, 2, 0)
    for top in range(0, image.height, BAND):
        bottom = min(top + BAND, image.height)
        whole = image.height <= BAND
        pixels[top:bottom] = convert_to_rgb(image if whole else image.crop((0, top, image.width, bottom)))
    return pixels


def convert_to_rgb(image: Any) -> Bytes:
    from PIL import Image

    if image.mode.startswith("I"):  # Pillow's own conversion would cut at 255 and leave white
        values = np.array(image, np.int32).clip(0, 65535)
        grey = ((values * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=-1)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image)
    # every copy here holds Python's lock, which is what bounds reading threads
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


# -- from bytes to what a network pretrained on ImageNet expects -------------------------------------------------------

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def normalise(image: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """... 3 h w, 0 ... 255   ->   the same shape, float32, (x / 255 - mean) / std"""
    centre, spread = (upload(values, image.device).view(3, 1, 1) for values in (mean, std))
    return (image.float() / 255 - centre) / spread


def upload(values: Sequence[object] | npt.NDArray[Any], device: torch.device) -> Tensor:
    """As `torch.tensor(values, device=device)`, but on a GPU without waiting for the work before it."""
    return to_device(torch.tensor(values), device)


# -- label files and their colours -------------------------------------------------------------------------------------


def voc_palette(k: int) -> tuple[Colour, ...]:
    """Return VOC's colours: the bits of the class number, three at a time, fill red, green and blue from the top."""

    def channel(number: int) -> int:
        return sum((number >> 3 * i & 1) << 7 - i for i in range(8))

    return tuple((channel(number), channel(number >> 1), channel(number >> 2)) for number in range(k))


UNLABELLED: Colour = (224, 224, 192)  # entry 255, as PASCAL VOC draws it


def full_palette(palette: Sequence[Colour], classes: int) -> list[Colour]:
    """Return 256 colours: those given, then PASCAL VOC's for the index; 255 is the colour of unlabelled pixels."""
    colours = [(int(r), int(g), int(b)) for r, g, b in palette[:classes]]
    return [*colours, *voc_palette(255)[len(colours) :], UNLABELLED]


def encode_label_png(label: Tensor | Bytes, palette: Sequence[Colour]) -> bytes:
    """Return a PNG whose pixel values are the labels; the palette only colours them.   label: h w uint8, on the CPU"""
    from PIL import Image

    image = Image.fromarray(np.asarray(label))
    image.putpalette([value for colour in palette for value in colour])
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
