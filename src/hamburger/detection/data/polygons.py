"""Polygons to masks, pixel for pixel as COCO's own tools fill them.

Corners are rounded to fifths of a pixel and edges are drawn as lines of such fine pixels. A column of pixels is crossed
where a line passes its centre, between the fine columns 5 x + 2 and 5 x + 3; a pixel is inside where an odd number of
crossings lie above it. Parts that overlap themselves are therefore outside, several polygons are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hamburger.detection.data.run_lengths import Extent, Mask
from hamburger.errors import InputError

FINE = 5
FARTHEST = 1e5  # pixels: lines are walked in fine steps, and no image is so long
FLAT = 1e-6  # square pixels
CENTRE = 2  # the fine column of a pixel after which its centre lies

Whole = npt.NDArray[np.int64]
Corners = npt.NDArray[np.float64]


def fill(polygons: Any, size: tuple[int, int]) -> Mask:
    """Lists x, y, x, y, ... of corners, and (h, w)   ->   h w, inside any of them"""
    mask = np.zeros(size, np.bool_)
    for polygon in listed(polygons):
        mask |= fill_one(corners_of(polygon), size)
    return mask


def listed(polygons: Any) -> Sequence[Any]:
    if not isinstance(polygons, (list, tuple)) or not len(polygons):
        raise InputError("a segmentation is a list of polygons, or run lengths; this one is empty or neither")
    return polygons


def corners_of(polygon: Any) -> Corners:
    """x, y, x, y, ... as numbers; what is broken raises."""
    try:
        corners = np.asarray(polygon, np.float64)
    except (TypeError, ValueError):
        raise InputError("a polygon is a list of numbers x, y, x, y, ...") from None
    if corners.ndim != 1 or len(corners) < 6 or len(corners) % 2:
        raise InputError(f"a polygon has three or more corners x, y; this one has {corners.size} numbers")
    low, high = corners.min(), corners.max()
    if not (low > -FARTHEST and high < FARTHEST):  # nor where one is NaN
        raise InputError(f"the corners of a polygon are pixels near the image; these go from {low:g} to {high:g}")
    return corners


def extent_of(polygons: Any, size: tuple[int, int]) -> Extent:
    """What lies in an image of (h, w): left, top, right, bottom. What is broken, or fills nothing of it, raises."""
    whole = [corners_of(polygon).tolist() for polygon in listed(polygons)]
    split = [(each[::2], each[1::2]) for each in whole]  # as lists: of so few numbers faster than arrays
    sides = [(min(x), min(y), max(x), max(y)) for x, y in split if not is_flat(x, y)]
    if not sides:
        raise InputError("the polygons have no extent: the corners of each lie on a line")
    h, w = size
    seen = [each for each in sides if each[0] < w and each[1] < h and each[2] > 0 and each[3] > 0]
    if not seen:
        raise InputError(f"the polygons lie outside the image of {w} x {h} pixels")
    left, top, right, bottom = zip(*seen, strict=True)
    return max(0, min(left)), max(0, min(top)), min(w, max(right)), min(h, max(bottom))


def is_flat(x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether all triangles from the first corner are lines; the polygon is what an odd number of them covers."""
    pairs = range(1, len(x) - 1)
    return all(abs((x[i] - x[0]) * (y[i + 1] - y[0]) - (y[i] - y[0]) * (x[i + 1] - x[0])) < FLAT for i in pairs)


def fill_one(corners: Corners, size: tuple[int, int]) -> Mask:
    h, w = size
    fine = (FINE * corners + 0.5).astype(np.int64).reshape(-1, 2)
    crossed = [crossings(a, b) for a, b in zip(fine, np.roll(fine, -1, 0), strict=True)]
    x, y = np.concatenate(crossed, axis=1)
    inside = (x % FINE == CENTRE) & (x >= 0) & (x < FINE * w)
    column, row = x[inside] // FINE, -((CENTRE - y[inside]) // FINE)  # the first centre at or below the line
    counts = np.zeros((h + 1, w), np.int64)
    np.add.at(counts, (row.clip(0, h), column), 1)
    return counts.cumsum(0)[:h] % 2 == 1


def crossings(a: Whole, b: Whole) -> Whole:
    """Where the line from a to b goes on to the next fine column.   2 m: the left column of each, and its upper row"""
    along = int(abs(b[1] - a[1]) > abs(b[0] - a[0]))  # the longer axis: every fine pixel of it is visited
    if a[along] > b[along]:
        a, b = b, a
    length = b[along] - a[along]
    if not length:
        return np.zeros((2, 0), np.int64)
    steps = np.arange(length + 1)
    across = (a[1 - along] + (b[1 - along] - a[1 - along]) / length * steps + 0.5).astype(np.int64)
    line = (a[along] + steps, across) if along == 0 else (across, a[along] + steps)
    x, y = (np.minimum(each[1:], each[:-1]) for each in line)
    return np.stack([x, y])[:, line[0][1:] != line[0][:-1]]
