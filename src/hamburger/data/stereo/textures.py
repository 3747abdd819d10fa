"""What is painted on a surface, as a function of its own coordinates: evaluated anywhere, so that no view is resampled.

Only sums, products and roundings are used, so that the bits are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hamburger.data.draws import Draws

Values = npt.NDArray[np.float64]
CELLS = 127  # of a lattice, in either direction, before it repeats
OCTAVES = ((3.0, 0.5), (7.0, 0.3), (17.0, 0.2))  # pixels of a cell, and weight


@dataclass(frozen=True)
class Rough:
    """Value noise of three sizes: every place looks different from its neighbours."""

    lattices: tuple[Values, ...]  # cells cells each, 0 ... 1

    @classmethod
    def drawn(cls, draws: Draws) -> Rough:
        return cls(tuple(draws.below(256, CELLS * CELLS).reshape(CELLS, CELLS) / 255 for _ in OCTAVES))

    def __call__(self, x: Values, y: Values) -> Values:
        total = np.zeros_like(x)
        for lattice, (size, weight) in zip(self.lattices, OCTAVES, strict=True):
            total += weight * _between(lattice, x / size, y / size)
        return (2 * total - 0.5).clip(0, 1)  # sums of noise crowd in the middle


@dataclass(frozen=True)
class Repeated:
    """Waves whose period is shorter than the disparities: one place looks like many others."""

    across: float
    along: float

    @classmethod
    def drawn(cls, draws: Draws) -> Repeated:
        across, along = draws.below(9, 2) + 6
        return cls(float(across), float(along))

    def __call__(self, x: Values, y: Values) -> Values:
        return 0.75 * _wave(x / self.across) + 0.25 * _wave(y / self.along)


@dataclass(frozen=True)
class Flat:
    """Nothing: only the edges of the surface show where it is."""

    def __call__(self, x: Values, y: Values) -> Values:
        return np.full_like(x, 0.5)


def _wave(turns: Values) -> Values:
    """Between 0 and 1 and back, in straight lines, once a turn."""
    return np.abs(2 * (turns - np.floor(turns)) - 1)


def _between(lattice: Values, x: Values, y: Values) -> Values:
    """Smooth between the points of a lattice."""
    x0, y0 = np.floor(x), np.floor(y)
    tx, ty = x - x0, y - y0
    tx, ty = tx * tx * (3 - 2 * tx), ty * ty * (3 - 2 * ty)
    left, top = x0.astype(np.int64) % CELLS, y0.astype(np.int64) % CELLS
    right, bottom = (left + 1) % CELLS, (top + 1) % CELLS
    upper = lattice[top, left] * (1 - tx) + lattice[top, right] * tx
    lower = lattice[bottom, left] * (1 - tx) + lattice[bottom, right] * tx
    return upper * (1 - ty) + lower * ty
