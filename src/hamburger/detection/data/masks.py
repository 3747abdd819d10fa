"""Object masks in COCO files: polygons and run-length encodings (RLE), read and written with pycocotools.

An RLE reads pixels column by column. Its counts are the lengths of runs of 0, 1, 0, 1, ...; the first may be 0.
pycocotools does not check its input and reads past its buffers on a malformed RLE, so every segmentation is validated
here first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hamburger.errors import InputError

Mask = npt.NDArray[np.bool_]
Extent = tuple[float, float, float, float]  # left, top, right, bottom

FARTHEST = 1e5  # pixels: pycocotools walks along edges in steps of a fifth of a pixel
FLAT = 1e-6  # square pixels below which a triangle has no area
# One number of an RLE string: five bits a character, the lowest first. Characters from P on say that more follow.
PACKED_COUNT = re.compile("[P-o]{0,6}[0-O]")


def read_mask(segmentation: Any, size: tuple[int, int]) -> Mask:
    """The mask of an annotation; an invalid segmentation raises InputError.   (h, w)   ->   h w"""
    from pycocotools import mask as coco_masks

    if isinstance(segmentation, dict):
        rle = coco_masks.frPyObjects({"size": size, "counts": read_counts(segmentation, size)}, *size)
    else:
        rle = coco_masks.merge(coco_masks.frPyObjects(read_polygons(segmentation), *size))
    return coco_masks.decode(rle).view(np.bool_)


def encode_masks(masks: Tensor) -> list[dict[str, Any]]:
    """One compressed RLE per mask, as COCO result files hold it.   m h w, bool   ->   m"""
    from pycocotools import mask as coco_masks

    columns_first = masks.to(torch.uint8).transpose(1, 2).contiguous().cpu().numpy()  # m w h
    return [{**rle, "counts": rle["counts"].decode()} for rle in coco_masks.encode(columns_first.T)]


def find_extent(segmentation: Any, size: tuple[int, int]) -> Extent:
    """The bounding box of a segmentation inside an image of (h, w), without drawing it.

    Raises InputError if the segmentation is invalid or covers no pixel of the image.
    """
    if isinstance(segmentation, dict):
        return _rle_extent(segmentation, size)
    return _polygon_extent(segmentation, size)


# -- run lengths -------------------------------------------------------------------------------------------------------


def read_counts(segmentation: Any, size: tuple[int, int]) -> list[int]:
    """The counts of `{"size": [h, w], "counts": [...] or "..."}`, validated for an image of `size`."""
    try:
        (h, w), counts = segmentation["size"], segmentation["counts"]
        counts = _unpack(counts) if isinstance(counts, str) else [int(count) for count in counts]
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError("an RLE needs a 'size' of two numbers and 'counts'") from None
    if (h, w) != size:
        raise InputError(f"the RLE is for {w} x {h} pixels, but the image has {size[1]} x {size[0]}")
    if h * w >= 2**32:
        raise InputError(f"an image of {w} x {h} pixels is too large for an RLE")
    if not all(0 <= count <= h * w for count in counts):
        raise InputError(f"RLE counts must lie between 0 and {w} x {h} = {h * w} pixels")
    if sum(counts) != h * w:
        raise InputError(f"RLE counts must sum to {w} x {h} = {h * w} pixels (got {sum(counts)})")
    return _merge_empty_runs(counts)


def _unpack(text: str) -> list[int]:
    """The counts of an RLE string. From the fourth on, each is stored as the difference from the count two before."""
    numbers = PACKED_COUNT.findall(text)
    if "".join(numbers) != text:
        raise InputError("an RLE string has characters from '0' to 'o' and ends with a complete number")
    counts: list[int] = []
    for number in numbers:
        bits = [ord(character) - ord("0") for character in number]
        value = sum((five & 31) << 5 * place for place, five in enumerate(bits))
        value -= (bits[-1] & 16) << 5 * len(bits) - 4  # two's complement: bit 4 of the last character is the sign
        counts.append(value + counts[-2] if len(counts) > 2 else value)
    return counts


def _merge_empty_runs(counts: list[int]) -> list[int]:
    """The same mask without empty runs, except for the first: pycocotools takes them for the end."""
    if 0 not in counts[1:]:
        return counts
    merged = [0]
    for place, count in enumerate(counts):
        if count and place % 2 == len(merged) % 2:
            merged.append(count)
        elif count:
            merged[-1] += count
    return merged


def _rle_extent(segmentation: Any, size: tuple[int, int]) -> Extent:
    from pycocotools import mask as coco_masks

    counts = read_counts(segmentation, size)
    if len(counts) < 2:
        raise InputError("the RLE has no pixel of the object: all its runs of 1 are empty")
    left, top, width, height = coco_masks.toBbox(coco_masks.frPyObjects({"size": size, "counts": counts}, *size))
    return float(left), float(top), float(left + width), float(top + height)


# -- polygons ----------------------------------------------------------------------------------------------------------


def read_polygons(polygons: Any) -> list[list[float]]:
    """Lists x, y, x, y, ... of corners, validated."""
    if not isinstance(polygons, (list, tuple)) or not polygons:
        raise InputError("a segmentation is a list of polygons or an RLE; this one is empty or neither")
    return [_read_corners(polygon) for polygon in polygons]


def _read_corners(polygon: Any) -> list[float]:
    try:
        corners = np.asarray(polygon, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError("a polygon is a list of numbers x, y, x, y, ...") from None
    if corners.ndim != 1 or len(corners) < 6 or len(corners) % 2:
        raise InputError(f"a polygon has three or more corners x, y (got {corners.size} numbers)")
    low, high = corners.min(), corners.max()
    if not (low > -FARTHEST and high < FARTHEST):  # also if one is NaN
        raise InputError(f"the corners of a polygon are pixels near the image (got {low:g} to {high:g})")
    return corners.tolist()


def _polygon_extent(polygons: Any, size: tuple[int, int]) -> Extent:
    corners = [(polygon[::2], polygon[1::2]) for polygon in read_polygons(polygons)]
    extents = [(min(x), min(y), max(x), max(y)) for x, y in corners if not _is_flat(x, y)]
    if not extents:
        raise InputError("the polygons have no area: the corners of each lie on a line")
    h, w = size
    visible = [each for each in extents if each[0] < w and each[1] < h and each[2] > 0 and each[3] > 0]
    if not visible:
        raise InputError(f"the polygons lie outside the image of {w} x {h} pixels")
    left, top, right, bottom = zip(*visible, strict=True)
    return max(0, min(left)), max(0, min(top)), min(w, max(right)), min(h, max(bottom))


def _is_flat(x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether every triangle that the first corner forms with an edge has no area."""
    edges = range(1, len(x) - 1)
    return all(abs((x[i] - x[0]) * (y[i + 1] - y[0]) - (y[i] - y[0]) * (x[i + 1] - x[0])) < FLAT for i in edges)
