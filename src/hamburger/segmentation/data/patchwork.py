"""`patchwork` and `patchwork-glyphs`: generated scenes whose classes only the whole image shows.

A scene is cut into many scattered pieces. Every piece belongs to a family, which its colour shows clearly. Each family
has two twins, warm and cool, and all pieces of one family in one image are the same twin. The variants differ in what
distinguishes the twins:

patchwork          Every pixel of the family is shifted slightly to red (warm) or to blue (cool), under noise many times
                   as strong. One piece has too few pixels to show the shift; all pieces together show it. This is the
                   low-rank-plus-noise model of the paper's Eq. 1.
patchwork-glyphs   Only a glyph on one piece of the family: a bright plus (warm) or a dark disc (cool). Every other
                   piece must be matched to it by colour, which attention can do and averaging cannot.

A scene is a function of (seed, split, index) alone. Only raw integers of PCG64 are drawn, whose stream is fixed, and
each pixel takes one rounded product, so the bits are the same on every machine.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
import numpy.typing as npt
import torch

from hamburger.errors import OptionError, check_choice, check_count, check_positive, check_seed
from hamburger.segmentation.data.base import SegmentationSet, datasets
from hamburger.training.datasets import TWINS, WARM, Sample, SceneLayout, cut_scene, shade
from hamburger.training.image_files import Colour
from hamburger.training.loader import KeyedRng

SPLITS = {"train": 2000, "val": 200}
FAMILIES: dict[str, Colour] = {
    "brick": (176, 84, 76),
    "moss": (92, 150, 72),
    "sea": (68, 112, 178),
    "sand": (190, 166, 92),
    "plum": (146, 84, 160),
    "slate": (118, 124, 130),
}
PLUS = ("..###..", "..###..", "#######", "#######", "#######", "..###..", "..###..")
DISC = (".#####.", "#######", "#######", "#######", "#######", "#######", ".#####.")
GLYPHS = {  # twin: its shape and its ink
    "warm": (np.array([list(row) for row in PLUS]) == "#", 250),
    "cool": (np.array([list(row) for row in DISC]) == "#", 5),
}

Colours = npt.NDArray[np.float64]


@dataclass(eq=False)
class Patchwork(SegmentationSet):
    """Base of both variants: options, classes, layout. Each variant paints what distinguishes the twins."""

    split: str = "train"
    _: KW_ONLY
    size: int = 64
    families: int = 5
    present: int = 3  # families in one image
    pieces: int = 20
    noise: float = 40.0
    length: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        call = self.name
        check_choice(call, "split", self.split, SPLITS)
        check_count(call, "size", self.size, least=16)
        check_count(call, "families", self.families, least=1)
        check_count(call, "present", self.present, least=1)
        check_count(call, "pieces", self.pieces, least=self.present)
        check_positive(call, "noise", self.noise, zero=True)
        check_seed(call, self.seed)
        if not self.present <= self.families <= len(FAMILIES):
            raise OptionError(
                f"{call}: must have present <= families <= {len(FAMILIES)} (got families={self.families}, "
                f"present={self.present})"
            )
        if self.size > 1024 or self.pieces > 1024:  # keyed distances stay below 2^31
            raise OptionError(f"{call}: size and pieces must be at most 1024 (got {self.size} and {self.pieces})")
        length = SPLITS[self.split] if self.length is None else self.length
        check_count(call, "length", length, least=1)
        self.ids = [f"{self.split}-{i:05d}" for i in range(length)]
        names = list(FAMILIES)[: self.families]
        self.classes = tuple(f"{family}-{twin}" for family in names for twin in TWINS)
        self.palette = tuple(shade(FAMILIES[family], twin) for family in names for twin in TWINS)
        self.colours = np.array([FAMILIES[family] for family in names], np.float64)

    def read(self, index: int) -> Sample:
        """Return scene number `index`: 3 size size and size size."""
        rng = KeyedRng(self.seed, list(SPLITS).index(self.split), index)
        layout = cut_scene(rng, size=self.size, pieces=self.pieces, families=self.families, present=self.present)
        noise = self.noise * rng.noise(3, self.size, self.size)
        image = np.rint(self.paint(layout, noise)).clip(0, 255).astype(np.uint8)
        label = (2 * layout.families + layout.twins[layout.families])[layout.piece].astype(np.uint8)
        return Sample(torch.from_numpy(image), torch.from_numpy(label))

    def paint(self, layout: SceneLayout, noise: Colours) -> Colours:
        """Return the image before rounding.   3 size size"""
        raise NotImplementedError


@datasets.register("patchwork")
@dataclass(eq=False, kw_only=True)
class PatchworkShift(Patchwork):
    name = "patchwork"
    shift: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.name, "shift", self.shift, zero=True)

    def paint(self, layout: SceneLayout, noise: Colours) -> Colours:
        signs = 1 - 2 * layout.twins  # warm is +1, cool is -1
        shifted = self.colours + self.shift * signs[:, None] * WARM
        return np.moveaxis(shifted[layout.families][layout.piece], -1, 0) + noise


@datasets.register("patchwork-glyphs")
@dataclass(eq=False, kw_only=True)
class PatchworkGlyphs(Patchwork):
    """`glyphs`: number of glyphs per family in an image, at most one per piece."""

    name = "patchwork-glyphs"
    noise: float = 10.0
    glyphs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.name, "glyphs", self.glyphs, least=0)

    def paint(self, layout: SceneLayout, noise: Colours) -> Colours:
        painted = np.moveaxis(self.colours[layout.families][layout.piece], -1, 0) + noise
        for family in np.unique(layout.families):
            shape, ink = GLYPHS[TWINS[layout.twins[family]]]
            reach = len(shape) // 2
            for piece in np.flatnonzero(layout.families == family)[: self.glyphs]:
                y, x = layout.centres[piece].clip(reach, self.size - 1 - reach)  # inside the frame
                spot = painted[:, y - reach : y + reach + 1, x - reach : x + reach + 1]
                spot[:, shape] = ink
        return painted
