"""Parts that generated scenes share: Voronoi pieces in families of warm and cool twins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hamburger.training.keyed_rng import Integers, KeyedRng
from hamburger.training.packed_images import Colour

TWINS = ("warm", "cool")


WARM = np.array([1, 0, -1], np.int64)  # the direction in which twins differ: red against blue


class Layout(NamedTuple):
    """Where the pieces lie and what they are. `piece`: size size, the number of the nearest centre."""

    piece: Integers
    centres: Integers  # pieces 2, y and x
    families: Integers  # pieces
    twins: Integers  # families, this image's twin of each


def cut(draws: KeyedRng, *, size: int, pieces: int, families: int, present: int) -> Layout:
    """A Voronoi cut around random centres; `present` of the families, each with at least one piece."""
    centres = draws.below(size, 2 * pieces).reshape(pieces, 2)
    here = draws.shuffled(families)[:present]
    order = draws.below(present, pieces)
    order[:present] = np.arange(present)
    axis = np.arange(size, dtype=np.int32)[:, None]
    squares = (axis - centres.T[:, None].astype(np.int32)) ** 2 * np.int32(pieces)  # 2 size pieces
    rows, columns = np.ascontiguousarray(squares.swapaxes(1, 2))
    # the piece's number in the low digits: one minimum finds the nearest centre and settles ties; piece by piece, since
    # two maps stay in the cache and one of all distances does not
    nearest = rows[0][:, None] + columns[0]
    other = np.empty_like(nearest)
    for piece in range(1, pieces):
        np.add((rows[piece] + np.int32(piece))[:, None], columns[piece], out=other)
        np.minimum(nearest, other, out=nearest)
    return Layout((nearest % pieces).astype(np.int64), centres, here[order], draws.below(2, families))


def shade(colour: Colour, twin: str) -> Colour:
    """The family's colour, lighter for the warm twin and darker for the cool one, so that label maps show both."""
    r, g, b = ((c + 255) // 2 if twin == "warm" else c * 5 // 8 for c in colour)
    return (r, g, b)
