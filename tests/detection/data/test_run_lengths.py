"""Masks as run lengths, against plain loops and COCO's own tools."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hamburger.detection.data import run_lengths
from hamburger.errors import InputError

MASKS = arrays.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9)))


def plain(mask):
    """Runs counted pixel by pixel, column after column."""
    counts, now = [0], False
    for column in mask.T:
        for pixel in column:
            if pixel != now:
                counts.append(0)
                now = not now
            counts[-1] += 1
    return counts


@given(MASKS)
def test_there_and_back(mask):
    assert run_lengths.encode(mask) == plain(mask)
    assert np.array_equal(run_lengths.decode(run_lengths.encode(mask), mask.shape), mask)
    assert np.array_equal(run_lengths.read(run_lengths.written(mask), mask.shape), mask)
    assert np.array_equal(run_lengths.read({"size": list(mask.shape), "counts": plain(mask)}, mask.shape), mask)


@given(MASKS)
def test_the_extent_is_that_of_the_pixels(mask):
    counts = [0, 0, *run_lengths.encode(mask), 0]  # runs of no length say nothing
    if not mask.any():
        with pytest.raises(InputError, match="no pixel of the object"):
            run_lengths.extent_of(counts, mask.shape)
        return
    rows, columns = np.nonzero(mask)
    expected = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert run_lengths.extent_of(counts, mask.shape) == expected


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=12))
def test_counts_of_any_size_go_through_a_string(counts):
    assert run_lengths.unpack(run_lengths.pack(counts)) == counts


def test_the_strings_are_those_of_cocos_tools():
    tools = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(0)
    for _ in range(200):
        mask = rng.random(rng.integers(1, 80, 2)) < rng.choice([0, 0.02, 0.5, 1])
        theirs = tools.encode(np.asfortranarray(mask.astype(np.uint8)))
        assert run_lengths.written(mask) == {"size": list(theirs["size"]), "counts": theirs["counts"].decode()}


@pytest.mark.parametrize(
    ("segmentation", "complaint"),
    [
        ({"counts": [4]}, "need a 'size'"),
        ({"size": [2, 2]}, "need a 'size' of two and 'counts'"),
        ({"size": [3, 2], "counts": [6]}, "are of 2 x 3 pixels, the image has 2 x 2"),
        ({"size": [2, 2], "counts": [3]}, "sum to 2 x 2 = 4 pixels, not 3"),
        ({"size": [2, 2], "counts": [5, -1]}, "at least 0"),
        ({"size": [2, 2], "counts": "4~"}, "characters from '0' to 'o'"),
        ({"size": [2, 2], "counts": "T"}, "in the midst of a number"),
        ({"size": [2, 2], "counts": ["a"]}, "need a 'size'"),
    ],
    ids=str,
)
def test_what_is_broken_is_named(segmentation, complaint):
    with pytest.raises(InputError, match=complaint):
        run_lengths.read(segmentation, (2, 2))
