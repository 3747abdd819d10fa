"""Segmentations of COCO files: masks read pixel for pixel, extents, and clean errors where pycocotools would crash."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hamburger.detection.data.coco import encode_masks, find_extent, read_mask
from hamburger.errors import InputError

MASKS = arrays.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9)))


def count_runs(mask):
    """Runs counted pixel by pixel, column after column."""
    counts, current = [0], False
    for pixel in mask.T.ravel():
        if pixel != current:
            counts.append(0)
            current = not current
        counts[-1] += 1
    return counts


def make_rle(mask, counts):
    return {"size": list(mask.shape), "counts": counts}


@given(MASKS)
def test_masks_survive_encoding(mask):
    [encoded] = encode_masks(torch.from_numpy(mask.copy())[None])
    assert encoded["size"] == list(mask.shape) and isinstance(encoded["counts"], str)
    assert np.array_equal(read_mask(encoded, mask.shape), mask)
    assert np.array_equal(read_mask(make_rle(mask, count_runs(mask)), mask.shape), mask)


def test_several_masks_are_encoded_at_once():
    masks = torch.rand(5, 7, 11) < 0.4
    decoded = [read_mask(each, (7, 11)) for each in encode_masks(masks)]
    assert np.array_equal(np.stack(decoded), masks.numpy()) and encode_masks(masks[:0]) == []


def test_an_rle_string_by_hand():
    """Counts 125, 10, 20, 10, ..., 345, 60, 540: of several characters, with differences of both signs."""
    mask = np.zeros((30, 40), bool)
    mask[5:15, 4:9] = True
    mask[:, 20:22] = True
    encoded = make_rle(mask, "m3:d00000000U:b1S6")
    assert encode_masks(torch.from_numpy(mask)[None]) == [encoded]
    assert np.array_equal(read_mask(encoded, (30, 40)), mask) and find_extent(encoded, (30, 40)) == (4, 0, 22, 30)


@given(MASKS)
def test_empty_runs_change_nothing(mask):
    counts = [0, 0, *count_runs(mask), 0]
    assert np.array_equal(read_mask(make_rle(mask, counts), mask.shape), mask)
    if not mask.any():
        with pytest.raises(InputError, match="no pixel of the object"):
            find_extent(make_rle(mask, counts), mask.shape)
        return
    rows, columns = np.nonzero(mask)
    expected = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert find_extent(make_rle(mask, counts), mask.shape) == expected


def random_polygon(seed):
    """Random corners, or corners at multiples of 0.5 or 1; some are outside the image."""
    rng = np.random.default_rng(seed)
    h, w = (int(side) for side in rng.integers(1, 60, 2))
    corners = rng.uniform(-15, 75, (int(rng.integers(3, 12)), 2))
    step = (None, 0.5, 1)[seed % 3]
    corners = corners if step is None else np.round(corners / step) * step
    return corners, (h, w)


def distance(points, a, b):
    """Distance of points from a segment.   n 2   ->   n"""
    along = b - a
    share = ((points - a) @ along / max(along @ along, 1e-12)).clip(0, 1)
    return np.linalg.norm(points - a - share[:, None] * along, axis=1)


@pytest.mark.parametrize("seed", range(30))
def test_a_polygon_fills_pixels_with_their_centre_inside(seed):
    """Inside: an odd number of edges is left of the centre. Near an edge rounding may decide."""
    corners, (h, w) = random_polygon(seed)
    centres = np.stack(np.meshgrid(np.arange(w) + 0.5, np.arange(h) + 0.5), -1).reshape(-1, 2)
    inside, near = np.zeros(h * w, bool), np.full(h * w, np.inf)
    for a, b in zip(corners, np.roll(corners, -1, 0), strict=True):
        near = np.minimum(near, distance(centres, a, b))
        crosses = (a[1] > centres[:, 1]) != (b[1] > centres[:, 1])
        with np.errstate(all="ignore"):
            left = a[0] + (centres[:, 1] - a[1]) * (b[0] - a[0]) / (b[1] - a[1]) < centres[:, 0]
        inside ^= crosses & left
    mask = read_mask([corners.ravel().tolist()], (h, w)).ravel()
    assert near[mask != inside].max(initial=0) < 0.35


def test_a_rectangle_of_whole_numbers_is_exact():
    expected = np.zeros((6, 7), bool)
    expected[1:4, 2:5] = True
    assert np.array_equal(read_mask([[2, 1, 5, 1, 5, 4, 2, 4]], (6, 7)), expected)


@pytest.mark.parametrize("seed", range(30))
def test_filled_pixels_lie_in_the_extent(seed):
    corners, (h, w) = random_polygon(seed)
    polygons = [corners.ravel().tolist(), random_polygon(seed + 1000)[0].ravel().tolist()]
    rows, columns = np.nonzero(read_mask(polygons, (h, w)))
    left, top, right, bottom = find_extent(polygons, (h, w))
    assert 0 <= left <= right <= w and 0 <= top <= bottom <= h
    # a pixel is filled if its centre is inside, or up to a fifth of a pixel away
    assert columns.min() + 1 > left and columns.max() < right and rows.min() + 1 > top and rows.max() < bottom


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ({"counts": [4]}, "needs a 'size'"),
        ({"size": [2, 2]}, "needs a 'size' of two numbers and 'counts'"),
        ({"size": [2, 2], "counts": ["a"]}, "needs a 'size'"),
        ({"size": [2, 2], "counts": [float("inf")]}, "needs a 'size'"),
        ({"size": [3, 2], "counts": [6]}, "is for 2 x 3 pixels, but the image has 2 x 2"),
        ({"size": [2, 2], "counts": [3]}, r"must sum to 2 x 2 = 4 pixels \(got 3\)"),
        ({"size": [2, 2], "counts": [5, -1]}, "between 0 and 2 x 2 = 4 pixels"),
        ({"size": [2, 2], "counts": [10**400]}, "between 0 and"),
        ({"size": [2, 2], "counts": "4~"}, "characters from '0' to 'o'"),
        ({"size": [2, 2], "counts": "T"}, "ends with a complete number"),
        ({"size": [2, 2], "counts": "o" * 100 + "0"}, "ends with a complete number"),
        ([], "empty or neither"),
        (None, "empty or neither"),
        ([[0, 0, 1, 1]], "three or more corners"),
        ([[0, 0, 1, 1, 2, 2, 3]], "three or more corners"),
        ([[[0, 0], [1, 1], [2, 0]]], "three or more corners"),
        ([[0, 0, 1, float("nan"), 2, 2]], "nan to nan"),
        ([[0, 0, 1, 1e6, 2, 2]], r"got 0 to 1e\+06"),
        ([["a", 0, 1, 1, 2, 2]], "a list of numbers"),
        ([[10**400, 0, 1, 1, 2, 2]], "a list of numbers"),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("read", [read_mask, find_extent])
def test_an_invalid_segmentation_raises(read, segmentation, message):
    with pytest.raises(InputError, match=message):
        read(segmentation, (2, 2))


@given(st.text(st.characters(min_codepoint=46, max_codepoint=113), max_size=12) | st.lists(st.integers(-3, 14)))
def test_random_counts_are_read_or_refused(counts):
    try:
        mask = read_mask({"size": [3, 4], "counts": counts}, (3, 4))
    except InputError:
        return
    assert mask.shape == (3, 4)
