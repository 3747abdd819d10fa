"""Masks as run lengths, the way COCO files hold them.

Pixels are read column by column, and the counts are those of runs of 0, 1, 0, 1, ...: the first may be 0. In a string
each count stands as its difference from the count two places before (from the fourth on), five bits a character and
the lowest first; bit 5 of a character says that more follow, bit 4 of the last is the sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hamburger.errors import InputError

Mask = npt.NDArray[np.bool_]
Extent = tuple[float, float, float, float]  # left, top, right, bottom
BASE = 48  # the character of 0
MORE, SIGN, LOW = 32, 16, 31


def encode(mask: Mask) -> list[int]:
    """h w   ->   counts"""
    flat = np.concatenate([[False], mask.ravel(order="F")])
    starts = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(starts, prepend=0, append=mask.size).tolist()


def decode(counts: Sequence[int], size: tuple[int, int]) -> Mask:
    """counts, (h, w)   ->   h w"""
    flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return flat.reshape(size[::-1]).T


def pack(counts: Sequence[int]) -> str:
    """counts   ->   the string of COCO's files"""
    said = []
    for place, count in enumerate(counts):
        left = count - counts[place - 2] if place > 2 else count
        while True:
            bits, left = left & LOW, left >> 5
            if left == (-1 if bits & SIGN else 0):  # the sign bit says the rest
                said.append(bits)
                break
            said.append(bits | MORE)
    return bytes(BASE + value for value in said).decode()


def unpack(text: str) -> list[int]:
    """The string of COCO's files   ->   counts"""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - BASE
        if not 0 <= bits < 2 * MORE:
            raise InputError(f"run lengths as a string hold characters from '0' to 'o', not {character!r}")
        value |= (bits & LOW) << shift
        shift += 5
        if not bits & MORE:
            value -= bits & SIGN and 1 << shift
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            value = shift = 0
    if shift:
        raise InputError("run lengths as a string end in the midst of a number")
    return counts


def counts_of(segmentation: Any, size: tuple[int, int]) -> list[int]:
    """`{"size": [h, w], "counts": [...] or "..."}` of a file, for an image of `size`; what is broken raises."""
    try:
        (h, w), counts = segmentation["size"], segmentation["counts"]
        counts = unpack(counts) if isinstance(counts, str) else [int(count) for count in counts]
    except (KeyError, TypeError, ValueError) as broken:
        if isinstance(broken, InputError):
            raise
        raise InputError("run lengths need a 'size' of two and 'counts'") from None
    if (h, w) != size:
        raise InputError(f"run lengths are of {w} x {h} pixels, the image has {size[1]} x {size[0]}")
    if sum(counts) != h * w or min(counts, default=0) < 0:
        raise InputError(f"run lengths must be at least 0 and sum to {w} x {h} = {h * w} pixels, not {sum(counts)}")
    return counts


def extent_of(counts: Sequence[int], size: tuple[int, int]) -> Extent:
    """counts, (h, w)   ->   left, top, right, bottom, the last two outside; a mask without a pixel raises"""
    runs, h = np.asarray(counts, np.int64), size[0]
    ends = runs.cumsum()[1::2]
    runs = runs[1::2]
    ends, runs = ends[runs > 0], runs[runs > 0]
    if not len(runs):
        raise InputError("run lengths have no pixel of the object: all runs of 1 are empty")
    first, last = ends - runs, ends - 1
    if (first // h != last // h).any():  # a run that goes on in the next column touches bottom and top
        top, bottom = 0, h
    else:
        top, bottom = int((first % h).min()), int((last % h).max()) + 1
    return int(first[0]) // h, top, int(last[-1]) // h + 1, bottom


def read(segmentation: Any, size: tuple[int, int]) -> Mask:
    """Run lengths of a file, for an image of `size`   ->   h w"""
    return decode(counts_of(segmentation, size), size)


def written(mask: Mask) -> dict[str, Any]:
    """A mask as a file of COCO results holds it."""
    return {"size": list(mask.shape), "counts": pack(encode(mask))}
