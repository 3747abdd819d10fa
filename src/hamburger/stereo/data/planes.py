"""`planes`: generated pairs of textured slanted planes, with exact disparity and occlusion.

A scene is a function of (seed, split, index) alone, with the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor

import numpy as np
import numpy.typing as npt
import torch

from hamburger.errors import OptionError, check_choice, check_count, check_positive, check_seed
from hamburger.stereo.data import StereoSample, StereoSet, stereo_sets
from hamburger.stereo.data.files import Mask
from hamburger.training.loader import Integers, KeyedRng

Values = npt.NDArray[np.float64]
Texture = Callable[[Values, Values], Values]  # x and y on the surface to 0 ... 1

SPLITS = {"train": 1000, "val": 100}
# cosine and sine of rotations, as rational numbers
TURNS = ((1.0, 0.0), (0.8, 0.6), (0.6, 0.8), (0.8, -0.6), (0.6, -0.8))
MAX_SLANT = 0.2  # pixels of disparity per pixel
GROUND_DISPARITY = 0.3  # largest of the ground, as a share of the largest disparity
EXPOSURE = 0.1  # range of the right camera's relative exposure


@dataclass(frozen=True)
class Surface:
    """A plane with disparity a x + b y + c, inside an ellipse or a rectangle; the ground has no boundary."""

    a: float
    b: float
    c: float
    texture: Texture
    colours: Values  # 2 3: the texture mixes these two
    centre: tuple[float, float] = (0.0, 0.0)
    reach: tuple[float, float] | None = None  # half axes; None for the ground
    turn: tuple[float, float] = TURNS[0]
    round: bool = False  # an ellipse

    def covers(self, x: Values, y: Values) -> Mask:
        if self.reach is None:
            return np.ones(np.broadcast(x, y).shape, np.bool_)
        cos, sin = self.turn
        x, y = x - self.centre[0], y - self.centre[1]
        u, v = (cos * x + sin * y) / self.reach[0], (cos * y - sin * x) / self.reach[1]
        return u * u + v * v <= 1 if self.round else np.maximum(np.abs(u), np.abs(v)) <= 1

    def rows(self, height: int) -> slice:
        """The rows of an image that contain the surface, and one more on either side, so that rounding loses none."""
        if self.reach is None:
            return slice(0, height)
        y, (_, along) = self.centre[1], _upright_extent(self.reach, self.turn)
        return slice(max(0, floor(y - along) - 1), max(0, min(height, ceil(y + along) + 2)))

    def disparity(self, x: Values, y: Values) -> Values:
        return self.a * x + self.b * y + self.c

    def point(self, right: Values, y: Values) -> Values:
        """The left x coordinate of the surface point that the right camera sees at x coordinate `right`."""
        return (right + self.b * y + self.c) / (1 - self.a)


@stereo_sets.register("planes")
class PlanesSet(StereoSet):
    """Generated pairs.

    - `planes`: number of planes in front of the ground
    - `max_disparity`: all disparities lie between 1 and `max_disparity` - 1
    - `noise`: standard deviation of the noise of each pixel, of 255
    """

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
        length = SPLITS[split] if length is None else length
        for option, count, least in (("height", height, 16), ("width", width, 32), ("planes", planes, 0)):
            check_count(self.name, option, count, least=least)
        for option, count, least in (("max_disparity", max_disparity, 8), ("length", length, 1)):
            check_count(self.name, option, count, least=least)
        if max_disparity > width // 2:
            raise OptionError(
                f"planes: disparities up to {max_disparity} leave too little overlap of views {width} pixels wide; use "
                f"max_disparity <= {width // 2}"
            )
        check_positive(self.name, "noise", noise, zero=True)
        check_seed(self.name, seed)
        self.split, self.height, self.width, self.planes = split, height, width, planes
        self.max_disparity, self.noise, self.seed = max_disparity, float(noise), seed
        self.ids = [f"{split}-{i:05d}" for i in range(length)]

    def read(self, index: int, *, occlusions: bool = True) -> StereoSample:
        rng = KeyedRng(self.seed, list(SPLITS).index(self.split), index)
        surfaces = self.surfaces(rng)
        y, x = np.meshgrid(*(np.arange(n, dtype=np.float64) for n in (self.height, self.width)), indexing="ij")
        nearest, points, disparity = render_view(surfaces, x, y, right=False)
        left = paint_view(surfaces, nearest, points, y)
        nearest_right, points_right, _ = render_view(surfaces, x, y, right=True)
        exposure = 1 + EXPOSURE * (rng.uniform() - 0.5)
        right = exposure * paint_view(surfaces, nearest_right, points_right, y)
        noisy = (view + self.noise * rng.noise(3, *x.shape) for view in (left, right))
        one, other = (torch.from_numpy(np.rint(view).clip(0, 255).astype(np.uint8)) for view in noisy)
        seen = torch.from_numpy(find_visible(surfaces, nearest, x - disparity, y)) if occlusions else None
        truth = torch.from_numpy(disparity.astype(np.float32))
        return StereoSample(one, other, truth, seen)

    def surfaces(self, rng: KeyedRng) -> list[Surface]:
        """The ground, then the planes in front of it."""
        largest = self.max_disparity - 1.0
        middle = (0.5 * (self.width - 1), 0.5 * (self.height - 1))
        surfaces = [self._surface(rng, middle, middle, (1.0, GROUND_DISPARITY * largest), ground=True)]
        for _ in range(self.planes):
            centre = (rng.uniform() * (self.width - 1), rng.uniform() * (self.height - 1))
            reach = (self.width * (0.06 + 0.16 * rng.uniform()), self.height * (0.1 + 0.25 * rng.uniform()))
            surfaces.append(self._surface(rng, centre, reach, (0.15 * largest, largest), ground=False))
        return surfaces

    def _surface(
        self,
        rng: KeyedRng,
        centre: tuple[float, float],
        reach: tuple[float, float],
        between: tuple[float, float],
        *,
        ground: bool,
    ) -> Surface:
        """A random surface, slanted only so far that all its disparities stay between 1 and the largest."""
        kind, turn, shape = (int(n) for n in rng.below(60, 3))
        turned = TURNS[0] if ground else TURNS[turn % len(TURNS)]
        low, high = between
        d = low + (high - low) * rng.uniform()
        a, b = (MAX_SLANT * (2 * rng.uniform() - 1) for _ in range(2))
        across, along = _upright_extent(reach, turned)
        allowed, tilt = min(d - 1.0, self.max_disparity - 1.0 - d), abs(a) * across + abs(b) * along
        if tilt > allowed:
            a, b = a * allowed / tilt, b * allowed / tilt
        colours = 25 + rng.below(206, 6).reshape(2, 3).astype(np.float64)
        # the ground has no edges: without texture, or with a repeated one, nothing would show its distance
        texture: Texture = flat_texture
        if ground or kind >= 30:
            lattices = [rng.below(256, CELLS * CELLS).reshape(CELLS, CELLS) / 255 for _ in OCTAVES]
            texture = partial(noise_texture, lattices)
        elif kind >= 15:
            texture = partial(wave_texture, *(rng.below(9, 2) + 6.0))
        c = d - a * centre[0] - b * centre[1]
        return Surface(a, b, c, texture, colours, centre, None if ground else reach, turned, shape % 2 == 0)


def _upright_extent(reach: tuple[float, float], turn: tuple[float, float]) -> tuple[float, float]:
    """Half width and half height of the upright box around a rotated surface."""
    cos, sin = abs(turn[0]), abs(turn[1])
    return cos * reach[0] + sin * reach[1], cos * reach[1] + sin * reach[0]


def render_view(surfaces: Sequence[Surface], x: Values, y: Values, *, right: bool) -> tuple[Integers, Values, Values]:
    """At every position of a view: the number of the nearest surface, the left x of its point, and its disparity.

    x: h w    y: h w, the number of each row
    """
    nearest, points, best = np.zeros(x.shape, np.int64), np.zeros_like(x), np.full_like(x, -np.inf)
    for number, surface in enumerate(surfaces):
        rows = surface.rows(len(x))
        at = surface.point(x[rows], y[rows]) if right else x[rows]
        disparity = surface.disparity(at, y[rows])
        wins = surface.covers(at, y[rows]) & (disparity > best[rows])
        nearest[rows][wins], points[rows][wins], best[rows][wins] = number, at[wins], disparity[wins]
    return nearest, points, best


def paint_view(surfaces: Sequence[Surface], nearest: Integers, points: Values, y: Values) -> Values:
    """The colours of a view: each pixel has the texture of its surface at its point.   ->   3 h w, 0 ... 255"""
    image = np.empty((3, *y.shape))
    for number, surface in enumerate(surfaces):
        here = nearest == number
        mix = surface.texture(points[here], y[here])
        for channel, (one, other) in enumerate(surface.colours.T):
            image[channel, here] = one + (other - one) * mix
    return image


def find_visible(surfaces: Sequence[Surface], nearest: Integers, right: Values, y: Values) -> Mask:
    """Whether the right camera sees the point of each left pixel, at x coordinate `right`: in frame, not occluded."""
    nearest_disparity, others = np.empty_like(right), np.full_like(right, -np.inf)
    for number, surface in enumerate(surfaces):
        at = surface.point(right, y)
        disparity, is_nearest = at - right, nearest == number
        nearest_disparity[is_nearest] = disparity[is_nearest]
        occludes = surface.covers(at, y) & ~is_nearest
        others[occludes] = np.maximum(others, disparity)[occludes]
    return (right >= 0) & (right <= right.shape[1] - 1) & (nearest_disparity >= others)


# -- textures ----------------------------------------------------------------------------------------------------------
# Functions of surface coordinates that can be evaluated anywhere, so that no view is resampled. They use only sums,
# products and rounding, so that the bits are the same on every machine.

CELLS = 127  # of a lattice, in each direction, before it repeats
OCTAVES = ((3.0, 0.5), (7.0, 0.3), (17.0, 0.2))  # pixels per cell, and weight


def flat_texture(x: Values, y: Values) -> Values:
    """One colour: only the edges of the surface show where it is."""
    return np.full_like(x, 0.5)


def wave_texture(across: float, along: float, x: Values, y: Values) -> Values:
    """Waves with a period shorter than the disparities: one place looks like many others."""
    return 0.75 * _triangle_wave(x / across) + 0.25 * _triangle_wave(y / along)


def noise_texture(lattices: Sequence[Values], x: Values, y: Values) -> Values:
    """Value noise at three scales: every place looks different from its neighbours.   lattices: CELLS CELLS, 0 ... 1"""
    total = np.zeros_like(x)
    for lattice, (size, weight) in zip(lattices, OCTAVES, strict=True):
        total += weight * _interpolate_lattice(lattice, x / size, y / size)
    return (2 * total - 0.5).clip(0, 1)  # sums of noise concentrate in the middle


def _triangle_wave(turns: Values) -> Values:
    """A triangle wave between 0 and 1 of period 1."""
    return np.abs(2 * (turns - np.floor(turns)) - 1)


def _interpolate_lattice(lattice: Values, x: Values, y: Values) -> Values:
    """Smooth interpolation between the points of a lattice."""
    x0, y0 = np.floor(x), np.floor(y)
    tx, ty = x - x0, y - y0
    tx, ty = tx * tx * (3 - 2 * tx), ty * ty * (3 - 2 * ty)
    left, top = x0.astype(np.int64) % CELLS, y0.astype(np.int64) % CELLS
    right, bottom = (left + 1) % CELLS, (top + 1) % CELLS
    upper = lattice[top, left] * (1 - tx) + lattice[top, right] * tx
    lower = lattice[bottom, left] * (1 - tx) + lattice[bottom, right] * tx
    return upper * (1 - ty) + lower * ty
