"""`figures`: generated images of one bright shape on a dim background; the shape is the class.

Simple enough for a few minutes of GAN training: whether shape, colour, position and size were learned can be seen by
eye. An image is a function of (seed, split, index) alone, drawn from raw PCG64 integers as in `patchwork`.
"""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
import numpy.typing as npt

from hamburger.classification.data.base import ImageChunk, ImageSource, image_sources
from hamburger.errors import check_choice, check_count, check_seed
from hamburger.training.keyed_rng import KeyedRng

SPLITS = {"train": 4096, "val": 1024}
FORMS = ("disc", "square", "cross", "ring")
FINE = 4  # supersampling factor per axis


@image_sources.register("figures")
class Figures(ImageSource):
    name = "figures"
    embedded = True

    def __init__(self, split: str = "train", *, size: int = 32, length: int | None = None, seed: int = 0) -> None:
        check_choice(self.name, "split", split, SPLITS)
        check_count(self.name, "size", size, least=16)
        check_seed(self.name, seed)
        self.split, self.size, self.seed = split, size, seed
        self.length = SPLITS[split] if length is None else length
        check_count(self.name, "length", self.length, least=1)
        self.classes = FORMS

    def __len__(self) -> int:
        return self.length

    def read(self, index: int) -> ImageChunk:
        draws = KeyedRng(self.seed, list(SPLITS).index(self.split), index)
        label = index % len(FORMS)
        hue, place_y, place_x, reach, ground = (draws.uniform() for _ in range(5))
        radius = self.size * (0.2 + 0.12 * reach)
        room = self.size - 2 * radius
        centre = (radius + room * place_y, radius + room * place_x)
        inside = _coverage(FORMS[label], self.size, centre, radius)
        ink = np.array(colorsys.hsv_to_rgb(hue, 0.85, 1.0))
        paper = np.array(colorsys.hsv_to_rgb((hue + 0.5) % 1, 0.4, 0.15 + 0.2 * ground))
        image = 255 * (inside * ink[:, None, None] + (1 - inside) * paper[:, None, None])
        return ImageChunk(np.rint(image).astype(np.uint8)[None], np.array([label], np.int64))

    def origin(self) -> Any:
        return {"seed": self.seed, "length": self.length}

    def transform(self) -> str:
        return f"drawn at {self.size}"


def _coverage(form: str, size: int, centre: tuple[float, float], radius: float) -> npt.NDArray[np.float64]:
    """Return the share of each pixel that the shape covers.   size size, in [0, 1]"""
    grid = (np.arange(size * FINE) + 0.5) / FINE
    y, x = (grid - centre[0])[:, None] / radius, (grid - centre[1])[None] / radius
    far = np.maximum(abs(y), abs(x))
    if form == "disc":
        covered = y * y + x * x <= 1
    elif form == "ring":
        covered = (y * y + x * x <= 1) & (y * y + x * x >= 0.3)
    elif form == "square":
        covered = far <= 0.85
    else:
        covered = (far <= 1) & (np.minimum(abs(y), abs(x)) <= 0.32)
    return covered.reshape(size, FINE, size, FINE).mean((1, 3))
