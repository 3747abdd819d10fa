"""Polygons filled as COCO's tools fill them, and as the definition says."""

from __future__ import annotations

import numpy as np
import pytest

from hamburger.detection.data.polygons import extent_of, fill
from hamburger.errors import InputError


def drawn(seed):
    """Polygons of random corners, at random, halves or whole numbers, some of them outside the image."""
    rng = np.random.default_rng(seed)
    h, w = (int(side) for side in rng.integers(1, 60, 2))
    corners = rng.uniform(-15, 75, (int(rng.integers(3, 12)), 2))
    step = (None, 0.5, 1)[seed % 3]
    corners = corners if step is None else np.round(corners / step) * step
    return corners, (h, w)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in pycocotools, about itself
def test_every_pixel_is_that_of_cocos_tools():
    tools = pytest.importorskip("pycocotools.mask")
    for seed in range(300):
        corners, size = drawn(seed)
        other = drawn(seed + 1000)[0]
        both = [corners.ravel().tolist(), other.ravel().tolist()]
        theirs = tools.decode(tools.merge(tools.frPyObjects(both, *size)))
        assert np.array_equal(fill(both, size), theirs.astype(bool)), seed


def distance(points, a, b):
    """Of points to a segment.   n 2   ->   n"""
    along = b - a
    share = ((points - a) @ along / max(along @ along, 1e-12)).clip(0, 1)
    return np.linalg.norm(points - a - share[:, None] * along, axis=1)


@pytest.mark.parametrize("seed", range(30))
def test_pixels_with_their_centre_inside(seed):
    """By an odd number of edges to the left of the centre; near an edge rounding may decide."""
    corners, (h, w) = drawn(seed)
    centres = np.stack(np.meshgrid(np.arange(w) + 0.5, np.arange(h) + 0.5), -1).reshape(-1, 2)
    inside, near = np.zeros(h * w, bool), np.full(h * w, np.inf)
    for a, b in zip(corners, np.roll(corners, -1, 0), strict=True):
        near = np.minimum(near, distance(centres, a, b))
        crosses = (a[1] > centres[:, 1]) != (b[1] > centres[:, 1])
        with np.errstate(all="ignore"):
            left = a[0] + (centres[:, 1] - a[1]) * (b[0] - a[0]) / (b[1] - a[1]) < centres[:, 0]
        inside ^= crosses & left
    ours = fill([corners.ravel().tolist()], (h, w)).ravel()
    assert near[ours != inside].max(initial=0) < 0.35


def test_a_rectangle_of_whole_numbers_is_exact():
    mask = fill([[2, 1, 5, 1, 5, 4, 2, 4]], (6, 7))
    expected = np.zeros((6, 7), bool)
    expected[1:4, 2:5] = True
    assert np.array_equal(mask, expected)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_filled_lies_in_the_extent(seed):
    corners, (h, w) = drawn(seed)
    polygons = [corners.ravel().tolist(), drawn(seed + 1000)[0].ravel().tolist()]
    rows, columns = np.nonzero(fill(polygons, (h, w)))
    left, top, right, bottom = extent_of(polygons, (h, w))
    assert 0 <= left <= right <= w and 0 <= top <= bottom <= h
    # a pixel is filled where its centre is inside, or up to a fifth of a pixel beside it
    assert columns.min() + 1 > left and columns.max() < right and rows.min() + 1 > top and rows.max() < bottom


@pytest.mark.parametrize(
    ("polygons", "complaint"),
    [
        ([], "empty or neither"),
        (None, "empty or neither"),
        ([[0, 0, 1, 1]], "three or more corners"),
        ([[0, 0, 1, 1, 2, 2, 3]], "three or more corners"),
        ([[0, 0, 1, float("nan"), 2, 2]], "from nan to nan"),
        ([["a", 0, 1, 1, 2, 2]], "a list of numbers"),
    ],
    ids=str,
)
def test_what_is_broken_is_named(polygons, complaint):
    with pytest.raises(InputError, match=complaint):
        fill(polygons, (4, 4))
