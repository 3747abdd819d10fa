"""`planes`: textured slanted planes seen by two cameras, with exact disparity and occlusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hamburger.errors import OptionError, check_choice, check_count, check_positive, check_seed
from hamburger.stereo.data.base import StereoSample, StereoSet, stereo_sets
from hamburger.stereo.data.files import Mask
from hamburger.training.keyed_rng import Draws, Integers

SPLITS = {"train": 1000, "val": 100}
TURNS = ((1.0, 0.0), (0.8, 0.6), (0.6, 0.8), (0.8, -0.6), (0.6, -0.8))  # cosine and sine, exact enough everywhere
SLANT = 0.2  # pixels of disparity a pixel, at most
GROUND = 0.3  # of the largest disparity: how near the ground comes
EXPOSURE = 0.1  # share by which the right camera's may differ


@dataclass(frozen=True)
class Surface:
    """`a`, `b`, `c`: of its disparity.   Outside its ellipse or rectangle it is not there; a ground has neither."""

    a: float
    b: float
    c: float
    texture: Callable[[Values, Values], Values]
    colours: Values  # 2 3, between which the texture mixes
    centre: tuple[float, float] = (0.0, 0.0)
    reach: tuple[float, float] | None = None  # half axes
    turn: tuple[float, float] = TURNS[0]
    round: bool = False

    def covers(self, x: Values, y: Values) -> Mask:
        if self.reach is None:
            return np.ones(np.broadcast(x, y).shape, np.bool_)
        cos, sin = self.turn
        x, y = x - self.centre[0], y - self.centre[1]
        u, v = (cos * x + sin * y) / self.reach[0], (cos * y - sin * x) / self.reach[1]
        return u * u + v * v <= 1 if self.round else np.maximum(np.abs(u), np.abs(v)) <= 1

    def box(self, height: int, width: int, *, right: bool) -> tuple[slice, slice]:
        """Rows and columns of a view outside of which it is not to be seen."""
        if self.reach is None:
            return slice(0, height), slice(0, width)
        (x, y), (across, along) = self.centre, _extent(self.reach, self.turn)
        corners = [(x + i * across, y + j * along) for i in (-1, 1) for j in (-1, 1)]
        # the right camera sees a point as far to the left as its disparity is, which is linear in both coordinates
        columns = [u - self.a * u - self.b * v - self.c if right else u for u, v in corners]
        return _within(y - along, y + along, height), _within(min(columns), max(columns), width)

    def disparity(self, x: Values, y: Values) -> Values:
        return self.a * x + self.b * y + self.c

    def point(self, right: Values, y: Values) -> Values:
        """The left coordinate of its point that the right camera sees at `right`."""
        return (right + self.b * y + self.c) / (1 - self.a)


@stereo_sets.register("planes")
class Planes(StereoSet):
    """`planes`: how many lie before the ground.   `max_disparity`: all disparities are between 1 and one less."""

    name = "planes"

    def __init__(
        self,
        split: str = "train",
        *,
        height: int = 64,
        width: int = 128,
        planes: int = 5,
        max_disparity: int = 32,
        noise: float = 3.0,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        check_choice(self.name, "split", split, SPLITS)
        check_count(self.name, "height", height, least=16)
        check_count(self.name, "width", width, least=32)
        check_count(self.name, "planes", planes, least=0)
        check_count(self.name, "max_disparity", max_disparity, least=8)
        if max_disparity > width // 2:
            raise OptionError(
                f"planes: disparities up to {max_disparity} leave too little of {width} pixels to both cameras; take "
                f"max_disparity <= {width // 2}"
            )
        check_positive(self.name, "noise", noise, zero=True)
        check_seed(self.name, seed)
        length = SPLITS[split] if length is None else length
        check_count(self.name, "length", length, least=1)
        self.split, self.height, self.width, self.planes = split, height, width, planes
        self.max_disparity, self.noise, self.seed = max_disparity, float(noise), seed
        self.ids = [f"{split}-{i:05d}" for i in range(length)]

    def read(self, index: int, *, occlusions: bool) -> StereoSample:
        draws = Draws(self.seed, list(SPLITS).index(self.split), index)
        surfaces = self.surfaces(draws)
        y, x = np.meshgrid(*(np.arange(n, dtype=np.float64) for n in (self.height, self.width)), indexing="ij")
        nearest, points, disparity = look(surfaces, x, y, right=False, pixels=True)
        left = paint(surfaces, nearest, points, y)
        nearest_right, points_right, _ = look(surfaces, x, y, right=True, pixels=True)
        exposure = 1 + EXPOSURE * (draws.uniform() - 0.5)
        right = exposure * paint(surfaces, nearest_right, points_right, y)
        left, right = (view + self.noise * draws.noise(3, *x.shape) for view in (left, right))
        seen = torch.from_numpy(visible(surfaces, nearest, x - disparity, y)) if occlusions else None
        truth = torch.from_numpy(disparity.astype(np.float32))
        return StereoSample(_bytes(left), _bytes(right), truth, seen)

    def surfaces(self, draws: Draws) -> list[Surface]:
        """The ground, then the planes before it."""
        most = self.max_disparity - 1.0
        middle = (0.5 * (self.width - 1), 0.5 * (self.height - 1))
        found = [self._surface(draws, middle, middle, (1.0, GROUND * most), ground=True)]
        for _ in range(self.planes):
            centre = (draws.uniform() * (self.width - 1), draws.uniform() * (self.height - 1))
            reach = (self.width * (0.06 + 0.16 * draws.uniform()), self.height * (0.1 + 0.25 * draws.uniform()))
            found.append(self._surface(draws, centre, reach, (0.15 * most, most), ground=False))
        return found

    def _surface(
        self,
        draws: Draws,
        centre: tuple[float, float],
        reach: tuple[float, float],
        between: tuple[float, float],
        *,
        ground: bool,
    ) -> Surface:
        """Slanted as far as its disparities stay between 1 and the largest, all over it."""
        kind, turn, shape = (int(n) for n in draws.below(60, 3))
        turned = TURNS[0] if ground else TURNS[turn % len(TURNS)]
        low, high = between
        d = low + (high - low) * draws.uniform()
        a, b = (SLANT * (2 * draws.uniform() - 1) for _ in range(2))
        across, along = _extent(reach, turned)
        room, tilt = min(d - 1.0, self.max_disparity - 1.0 - d), abs(a) * across + abs(b) * along
        if tilt > room:
            a, b = a * room / tilt, b * room / tilt
        colours = 25 + draws.below(206, 6).reshape(2, 3).astype(np.float64)
        # a ground without texture, or with a repeated one, has no edge of its own that would show how far it is
        texture = Rough.drawn(draws) if ground or kind >= 30 else Repeated.drawn(draws) if kind >= 15 else Flat()
        c = d - a * centre[0] - b * centre[1]
        return Surface(a, b, c, texture, colours, centre, None if ground else reach, turned, shape % 2 == 0)


def _extent(reach: tuple[float, float], turn: tuple[float, float]) -> tuple[float, float]:
    """Half of the width and of the height of what is turned, upright."""
    cos, sin = abs(turn[0]), abs(turn[1])
    return cos * reach[0] + sin * reach[1], cos * reach[1] + sin * reach[0]


def _within(low: float, high: float, length: int) -> slice:
    """The pixels between, and one more on either side: a corner that is rounded must not be missed."""
    return slice(max(0, floor(low) - 1), max(0, min(length, ceil(high) + 2)))


def _bytes(view: Values) -> Tensor:
    return torch.from_numpy(np.rint(view).clip(0, 255).astype(np.uint8))


def look(
    surfaces: Sequence[Surface], x: Values, y: Values, *, right: bool, pixels: bool = False
) -> tuple[Integers, Values, Values]:
    """At every place of a view: number of the nearest surface, left coordinate of its point, its disparity.

    pixels: the places are those of a whole image, and each surface is looked for in its box alone.
    """
    nearest, points, best = np.zeros(x.shape, np.int64), np.zeros_like(x), np.full_like(x, -np.inf)
    for number, surface in enumerate(surfaces):
        box = surface.box(*x.shape, right=right) if pixels else (slice(None), slice(None))
        at = surface.point(x[box], y[box]) if right else x[box]
        disparity = surface.disparity(at, y[box])
        wins = surface.covers(at, y[box]) & (disparity > best[box])
        nearest[box][wins], points[box][wins], best[box][wins] = number, at[wins], disparity[wins]
    return nearest, points, best


def paint(surfaces: Sequence[Surface], nearest: Integers, points: Values, y: Values) -> Values:
    """3 h w, 0 ... 255, each pixel by the texture of its surface at its point."""
    image = np.empty((3, *y.shape))
    for number, surface in enumerate(surfaces):
        here = nearest == number
        mix = surface.texture(points[here], y[here])
        for channel, (one, other) in enumerate(surface.colours.T):
            image[channel, here] = one + (other - one) * mix
    return image


def visible(surfaces: Sequence[Surface], nearest: Integers, right: Values, y: Values) -> Mask:
    """Whether the right camera sees the point of each left pixel at `right`: inside its frame, behind nothing."""
    own, others = np.empty_like(right), np.full_like(right, -np.inf)
    for number, surface in enumerate(surfaces):
        at = surface.point(right, y)
        disparity, mine = at - right, nearest == number
        own[mine] = disparity[mine]
        there = surface.covers(at, y) & ~mine
        others[there] = np.maximum(others, disparity)[there]
    return (right >= 0) & (right <= right.shape[1] - 1) & (own >= others)


# ----------------------------------------------------------------------------------------------------------------------
# What is painted on a surface, as a function of its own coordinates: evaluated anywhere, so that no view is resampled.
#
# Only sums, products and roundings are used, so that the bits are the same on every machine.


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
