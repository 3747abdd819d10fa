"""`shapes`: generated scenes of overlapping textured shapes, with boxes and masks.

A class is a form (disc, square, triangle, cross, ring) in warm or cool light. The form is easy to see. The light is the
same for all shapes of one image. The background is cut into tiles. Every tile and every shape has a random tint between
red and blue (`jitter`), and all of them together are shifted a little to red (warm) or to blue (cool, `shift`). One
shape says little about the light, since its random tint is larger than the shift; the mean over the image shows it.
So a detector finds forms from local detail, but warm and cool only from global context: the low-rank-plus-noise model
of the paper's Eq. 1.

Shapes overlap, later ones in front. Masks and boxes cover the visible part, and no shape is hidden by more than half.
A scene is a function of (seed, split, index) alone, with the same bits on every machine, as in `patchwork`.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from hamburger.detection.data import DetectionSet, Scene, detection_sets, find_boxes
from hamburger.detection.data.coco import Mask
from hamburger.errors import OptionError, check_choice, check_count, check_positive, check_seed
from hamburger.training.datasets import TWINS, WARM, cut_scene, shade
from hamburger.training.image_files import Colour
from hamburger.training.loader import Integers, KeyedRng

SPLITS = {"train": 2000, "val": 200}
FORMS: dict[str, Colour] = {
    "disc": (176, 108, 96),
    "square": (100, 150, 92),
    "triangle": (96, 120, 170),
    "cross": (178, 160, 104),
    "ring": (140, 96, 150),
}
BACKGROUND = np.array([104, 104, 104], np.int64)
MAX_HIDDEN = 2  # at least 1 / MAX_HIDDEN of every shape stays visible
TRIES = 4  # positions that are tried for a shape before it is left out
CONTRAST = 14  # of a texture, in both directions


@detection_sets.register("shapes")
class ShapesSet(DetectionSet):
    """Generated scenes.

    - `shapes`: largest number in one image; at least half as many are tried
    - `tiles`: number of tiles of the background
    - `jitter`, `shift`, `noise`: standard deviation of the tints, their common shift, and standard deviation of the
      noise of each pixel, all of 255
    """

    name = "shapes"

    def __init__(
        self,
        split: str = "train",
        *,
        size: int = 128,
        shapes: int = 8,
        tiles: int = 48,
        jitter: float = 12.0,
        shift: float = 5.0,
        noise: float = 16.0,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        check_choice(self.name, "split", split, SPLITS)
        length = SPLITS[split] if length is None else length
        for option, count, least in (
            ("size", size, 32),
            ("shapes", shapes, 1),
            ("tiles", tiles, 1),
            ("length", length, 1),
        ):
            check_count(self.name, option, count, least=least)
        for option, value in (("jitter", jitter), ("shift", shift), ("noise", noise)):
            check_positive(self.name, option, value, zero=True)
        check_seed(self.name, seed)
        if size > 1024 or tiles > 1024:  # keyed distances stay below 2^31
            raise OptionError(f"shapes: size and tiles must be at most 1024 (got {size} and {tiles})")
        self.split, self.size, self.shapes, self.tiles, self.seed = split, size, shapes, tiles, seed
        self.jitter, self.shift, self.noise = float(jitter), float(shift), float(noise)
        self.ids = [f"{split}-{i:05d}" for i in range(length)]
        self.classes = tuple(f"{form}-{twin}" for form, twin in product(FORMS, TWINS))
        self.palette = tuple(shade(FORMS[form], twin) for form, twin in product(FORMS, TWINS))
        self.colours = np.array(list(FORMS.values()), np.int64)

    def read(self, index: int) -> Scene:
        rng = KeyedRng(self.seed, list(SPLITS).index(self.split), index)
        twin = int(rng.below(2, 1)[0])
        ground = cut_scene(rng, size=self.size, pieces=self.tiles, families=1, present=1).piece
        forms, visible = self.place_shapes(rng)
        tints = np.rint(self.jitter * rng.noise(self.tiles + len(forms)) + (1 - 2 * twin) * self.shift)
        tint = tints.astype(np.int64)[:, None] * WARM  # pieces 3
        image = BACKGROUND + tint[: self.tiles][ground]  # size size 3
        for form, shape_tint, mask in zip(forms, tint[self.tiles :], visible, strict=True):
            image[mask] = self.colours[form] + shape_tint + draw_texture(rng, self.size)[mask][:, None]
        masks = torch.from_numpy(visible)
        noisy = np.moveaxis(image, -1, 0) + self.noise * rng.noise(3, self.size, self.size)
        pixels = torch.from_numpy(np.rint(noisy).clip(0, 255).astype(np.uint8))
        labels = torch.tensor(forms) * 2 + twin
        areas = torch.from_numpy(visible.sum((1, 2)).astype(np.float64))
        return Scene(pixels, find_boxes(masks), labels, masks, areas, torch.zeros(len(forms), dtype=torch.bool))

    def place_shapes(self, rng: KeyedRng) -> tuple[list[int], Mask]:
        """Forms, and the visible part of each shape.   m, m size size"""
        count = self.shapes - int(rng.below(self.shapes // 2 + 1, 1)[0])
        forms: list[int] = []
        areas: list[int] = []  # pixels of each whole shape
        visible = np.zeros((0, self.size, self.size), np.bool_)
        for _ in range(count):
            form = int(rng.below(len(FORMS), 1)[0])
            for _ in range(TRIES):
                mask = draw_shape(list(FORMS)[form], rng, self.size)
                remaining = visible & ~mask
                if (MAX_HIDDEN * remaining.sum((1, 2)) >= areas).all():
                    forms, areas = [*forms, form], [*areas, int(mask.sum())]
                    visible = np.concatenate([remaining, mask[None]])
                    break
        return forms, visible


def draw_shape(form: str, rng: KeyedRng, size: int) -> Mask:
    """The mask of one shape at a random place, by integer arithmetic only.   size size"""
    smallest, largest = size // 12, size // 6
    radius = smallest + int(rng.below(largest - smallest + 1, 1)[0])
    top, left = rng.below(size - 2 * radius, 2).tolist()
    y = np.arange(size)[:, None] - top - radius
    x = np.arange(size)[None] - left - radius
    square = (abs(y) <= radius) & (abs(x) <= radius)
    squared_distance = y * y + x * x
    if form == "disc":
        return squared_distance <= radius * radius
    if form == "ring":
        return (squared_distance <= radius * radius) & (4 * squared_distance >= radius * radius)
    if form == "triangle":  # upright: as wide as it is high at the bottom
        return square & (2 * abs(x) <= y + radius)
    if form == "cross":
        return square & (3 * np.minimum(abs(y), abs(x)) <= radius)
    return square


def draw_texture(rng: KeyedRng, size: int) -> Integers:
    """Brightness offsets: plain, horizontal or vertical stripes, or checks.   size size"""
    kind, period = int(rng.below(4, 1)[0]), 2 + int(rng.below(4, 1)[0])
    y, x = (np.arange(size) // period)[:, None], (np.arange(size) // period)[None]
    parity = ((0 * y + 0 * x), y + 0 * x, 0 * y + x, y + x)[kind] % 2
    return CONTRAST * (2 * parity - 1) * (kind > 0)
