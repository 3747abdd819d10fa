"""Cut a large image into overlapping tiles, so that memory is bounded by the tile and not by the photograph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple


class Span(NamedTuple):
    """One tile along one axis: read `begin:end`, keep `first:last`."""

    begin: int
    end: int
    first: int
    last: int


def spans(length: int, tile: int, margin: int) -> list[Span]:
    """Tiles of one axis: the kept parts cover it once and differ by at most one position.

    Each is read with `margin` more on both sides, where the image goes on, and is at most `tile` long in all.
    """
    if length <= tile:
        return [Span(0, length, 0, length)]
    count = math.ceil(length / (tile - 2 * margin))
    cuts = [length * i // count for i in range(count + 1)]
    return [Span(max(0, first - margin), min(length, last + margin), first, last) for first, last in pairwise(cuts)]


def tiles(height: int, width: int, max_pixels: int) -> Iterator[tuple[Span, Span]]:
    """(rows, columns) of every tile of at most `max_pixels`; one tile where the whole image is no larger."""
    if height * width <= max_pixels:
        yield Span(0, height, 0, height), Span(0, width, 0, width)
        return
    side = math.isqrt(max_pixels)
    if height <= side or width <= side:  # a strip: as long as the area allows, not a row of squares
        short = min(height, width)
        side = max(side, max_pixels // short)
    margin = min(96, side // 8)
    for rows in spans(height, side, margin):
        for columns in spans(width, side, margin):
            yield rows, columns
