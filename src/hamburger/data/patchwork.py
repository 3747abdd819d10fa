"""`patchwork` and `patchwork-glyphs`: scenes drawn from a seed, whose classes show only in the whole image.

A scene is cut into many scattered pieces. Every piece belongs to a family, whose colour is plain to see. Each family
has two twins, warm and cool, and all pieces of one family in one image are the same twin. What tells the twins
apart differs:

patchwork          every pixel of the family is shifted a little to red (warm) or to blue (cool), under noise many times
                   as strong. One piece holds too few pixels to see it; all pieces together show it: the low-rank-plus-
                   noise model of the paper's Eq. 1.
patchwork-glyphs   nothing, but for one small glyph somewhere in the image, on a piece of that family: a cross (warm) or
                   a ring (cool). Every other piece must be matched to it by colour.

A scene is a function of (seed, split, index) alone. Only raw integers of PCG64 are drawn, whose stream is fixed, and
each pixel takes one rounded product, so that the bits are the same on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hamburger.data.base import Colour, Sample, SegmentationSet, datasets
from hamburger.data.draws import Draws, Integers
from hamburger.errors import OptionError, check_choice, check_count, check_positive, check_seed

SPLITS = {"train": 2000, "val": 200}
FAMILIES: dict[str, Colour] = {
    "brick": (176, 84, 76),
    "moss": (92, 150, 72),
    "sea": (68, 112, 178),
    "sand": (190, 166, 92),
    "plum": (146, 84, 160),
    "slate": (118, 124, 130),
}
TWINS = ("warm", "cool")
WARM = np.array([1, 0, -1], np.int64)  # the direction in which twins differ: red against blue
GLYPHS = {
    "warm": ("#...#", ".#.#.", "..#..", ".#.#.", "#...#"),
    "cool": (".###.", "#...#", "#...#", "#...#", ".###."),
}
GLYPH_INK = 250


class Layout(NamedTuple):
    """Where the pieces lie and what they are. `piece`: size size, the number of the nearest centre."""

    piece: Integers
    centres: Integers  # pieces 2, y and x
    families: Integers  # pieces
    twins: Integers  # families, this image's twin of each


def cut(draws: Draws, *, size: int, pieces: int, families: int, present: int) -> Layout:
    """A Voronoi cut around random centres; `present` of the families, each with at least one piece."""
    centres = draws.below(size, 2 * pieces).reshape(pieces, 2)
    here = draws.shuffled(families)[:present]
    order = draws.below(present, pieces)
    order[:present] = np.arange(present)
    axis = np.arange(size, dtype=np.int32)[:, None]
    squares = (axis - centres.T[:, None].astype(np.int32)) ** 2  # 2 size pieces
    rows, columns = squares[0].T, squares[1].T
    # the piece's number in the low digits: one minimum finds the nearest centre and settles ties
    keyed = (rows[:, :, None] + columns[:, None]) * np.int32(pieces) + np.arange(pieces, dtype=np.int32)[:, None, None]
    return Layout((keyed.min(0) % pieces).astype(np.int64), centres, here[order], draws.below(2, families))


class Patchwork(SegmentationSet):
    """What both variants share: options, names, layout."""

    glyphs = False

    def __init__(
        self,
        split: str = "train",
        *,
        size: int = 64,
        families: int = 5,
        present: int = 3,
        pieces: int = 20,
        noise: float = 40.0,
        shift: float = 3.0,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        call = self.name
        check_choice(call, "split", split, SPLITS)
        check_count(call, "size", size, least=16)
        check_count(call, "families", families, least=1)
        check_count(call, "present", present, least=1)
        check_count(call, "pieces", pieces, least=present)
        check_positive(call, "noise", noise, zero=True)
        check_positive(call, "shift", shift, zero=True)
        check_seed(call, seed)
        if families > len(FAMILIES) or present > families:
            raise OptionError(
                f"{call}: there are {len(FAMILIES)} families; families={families} of them with present={present} in an "
                f"image do not fit: present <= families <= {len(FAMILIES)}"
            )
        if size > 1024 or pieces > 1024:  # keyed distances stay below 2^31
            raise OptionError(f"{call}: size and pieces are at most 1024, got {size} and {pieces}")
        length = SPLITS[split] if length is None else length
        check_count(call, "length", length, least=1)
        self.split, self.size, self.families, self.present, self.pieces = split, size, families, present, pieces
        self.noise, self.shift, self.seed = float(noise), float(shift), seed
        self.ids = [f"{split}-{i:05d}" for i in range(length)]
        names = list(FAMILIES)[:families]
        self.classes = tuple(f"{family}-{twin}" for family in names for twin in TWINS)
        self.palette = tuple(shade(FAMILIES[family], twin) for family in names for twin in TWINS)
        self._colours = np.array([FAMILIES[family] for family in names], np.float64)

    def __getitem__(self, index: int) -> Sample:
        """Scene number `index`: 3 size size and size size."""
        if not 0 <= index < len(self):  # also what ends a plain for loop
            raise IndexError(f"{self.name}: there are {len(self)} scenes, index {index} is none of them")
        draws = Draws(self.seed, list(SPLITS).index(self.split), index)
        layout = cut(draws, size=self.size, pieces=self.pieces, families=self.families, present=self.present)
        colours = self._colours.copy()
        if not self.glyphs:
            signs = 1 - 2 * layout.twins  # warm is +1, cool is -1
            colours += self.shift * signs[:, None] * WARM
        of_piece = colours[layout.families]
        noisy = np.moveaxis(of_piece[layout.piece], -1, 0) + self.noise * draws.noise(3, self.size, self.size)
        if self.glyphs:
            self.stamp(noisy, layout)
        image = np.rint(noisy).clip(0, 255).astype(np.uint8)
        label = (2 * layout.families + layout.twins[layout.families])[layout.piece].astype(np.uint8)
        return Sample(torch.from_numpy(image), torch.from_numpy(label))

    def stamp(self, noisy: npt.NDArray[np.float64], layout: Layout) -> None:
        """One glyph for each family present, on the first of its pieces, moved inside the frame at the edge."""
        for family in np.unique(layout.families):
            shape = np.array([list(row) for row in GLYPHS[TWINS[layout.twins[family]]]]) == "#"
            y, x = layout.centres[np.flatnonzero(layout.families == family)[0]].clip(2, self.size - 3)
            spot = noisy[:, y - 2 : y + 3, x - 2 : x + 3]
            spot[:] = np.where(shape, GLYPH_INK, self._colours[family][:, None, None])


@datasets.register("patchwork")
class PatchworkShift(Patchwork):
    name = "patchwork"


@datasets.register("patchwork-glyphs")
class PatchworkGlyphs(Patchwork):
    name = "patchwork-glyphs"
    glyphs = True


def shade(colour: Colour, twin: str) -> Colour:
    """The family's colour, lighter for the warm twin and darker for the cool one, so that label maps show both."""
    r, g, b = ((c + 255) // 2 if twin == "warm" else c * 5 // 8 for c in colour)
    return (r, g, b)
