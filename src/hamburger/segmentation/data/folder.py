"""`folder`: your own images and labels.

    classes.txt                            one class per line, in the order of the label values: `road`, or with a
                                           colour `road 128 64 128`; lines that begin with # are skipped
    images/<id>.jpg|png|...                labels/<id>.png                with train.txt, val.txt: lists of ids
    images/<split>/...                     labels/<split>/...             or one folder per split
    <split>/images/...                     <split>/labels/...             or the splits on top

Labels are index maps: grey levels or palette indices 0 ... k - 1, and 255 where unlabelled. For masks of two classes
with the values 0 and 255, set `binary`. If every class has a colour in classes.txt, labels may also be RGB images in
those colours; `ignore_colour` is then the colour of unlabelled pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from hamburger.checkpoints.weights_file import MAX_SIDE, MIN_SIDE
from hamburger.errors import DataError, OptionError, check_count, check_flag, shorten
from hamburger.segmentation.data.base import ImageLabelPair, ImageLabelSet, datasets, list_pairs
from hamburger.training.datasets import IGNORE, MOST_CLASSES, OUTSIDE, Sample, check_root
from hamburger.training.image_files import Bytes, Colour, read_indices, resized, voc_palette
from hamburger.training.safe_files import read_lines

PACKED = np.array((1 << 16, 1 << 8, 1))  # colours @ PACKED: one number for each colour
CHUNK = 2**20  # pixels of an RGB label that are packed at once
LAYOUTS = "classes.txt, images/ and labels/ (both with one folder per split, or with train.txt and val.txt)"


@datasets.register("folder")
class LabelFolder(ImageLabelSet):
    """- `classes`: names or numbers of the classes to keep; all others become 255
    - `binary`: masks of two classes: 0 is the first, 255 (or 1) the second; no pixel is unlabelled
    - `ignore`: further label value(s) that mean unlabelled
    - `remap`: from values in index maps to class numbers (255: unlabelled), for files whose values are not 0 ... k - 1;
      values without an entry are errors
    - `ignore_colour`: red, green, blue of unlabelled pixels in RGB labels
    - `side`: images whose longer side is longer are shrunk to it when they are read, as `Predictor` does it
    """

    def __init__(
        self,
        split: str = "train",
        *,
        root: Path,
        classes: Sequence[str | int] | str | None = None,
        binary: bool = False,
        ignore: int | Sequence[int] = (),
        remap: Mapping[int | str, int] | None = None,
        ignore_colour: Sequence[int] | None = None,
        side: int | None = None,
    ) -> None:
        if side is not None:
            check_count("folder", "side", side, least=MIN_SIDE, most=MAX_SIDE)
        self.side = side
        root = check_root("folder", Path(root), LAYOUTS)
        colours = read_classes(root / "classes.txt")
        default = voc_palette(len(colours))
        palette = [colour or default[i] for i, colour in enumerate(colours.values())]
        pairs = find_pairs(root, split)
        super().__init__("folder", split, pairs, classes=list(colours), palette=palette, keep=classes)
        self.colours = build_colour_table(list(colours.values()), ignore_colour)
        check_flag("folder", "binary", binary)
        if binary:
            if len(colours) != 2 or remap is not None:
                raise OptionError(
                    f"folder: binary needs two classes in classes.txt and no remap (got {len(colours)} classes); give "
                    f"other values their classes with remap="
                )
            remap = {0: 0, 1: 1, IGNORE: 1}
        self.remapped = remap is not None
        if remap is not None:
            self.table = self.table[build_remap_table(remap, len(colours))]
        for value in [ignore] if isinstance(ignore, int) else ignore:
            if not 0 <= value <= IGNORE or self.table[value] < OUTSIDE:
                raise OptionError(
                    f"folder: ignore must be label values 0 ... {IGNORE} without a class (got {value!r}); to leave a "
                    f"class out, list the others in classes="
                )
            self.table[value] = IGNORE

    def read(self, index: int) -> Sample:
        sample = super().read(index)
        height, width = sample.label.shape
        if self.side is None or max(height, width) <= self.side:
            return sample
        size = resized(height, width, self.side)
        rows, columns = (  # the label in the middle of each new pixel
            ((torch.arange(new) + 0.5) * (old / new)).long() for new, old in zip(size, (height, width), strict=True)
        )
        image = F.interpolate(sample.image[None], size=size, mode="bilinear", antialias=True)[0]
        return Sample(image, sample.label[rows][:, columns].contiguous())

    def read_raw(self, path: Path) -> Bytes:
        label = read_indices(path, colours=True)
        if label.ndim == 2:
            return label
        if self.remapped:
            raise DataError(f"{path}: an RGB label, but remap= is for index maps; classes.txt maps colours")
        if self.colours is None:
            raise DataError(
                f"{path}: an RGB label, but not every class has a colour in classes.txt; add them as "
                f"`name red green blue`, or save the label as an index map"
            )
        return index_colours(path, label, self.colours)


def read_classes(path: Path) -> dict[str, Colour | None]:
    """Return the classes of a classes.txt in order, with the colour of each or None.

    A line is a name, which may contain spaces, optionally followed by three numbers 0 ... 255.
    """
    lines = read_lines(path, "the classes, one per line, in the order of their label values")
    colours: dict[str, Colour | None] = {}
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            continue
        colour = None
        if len(words) > 3 and all(word.isdecimal() for word in words[-3:]):
            r, g, b = map(int, words[-3:])
            if max(r, g, b) > 255:
                raise DataError(
                    f"{path}, line {number}: a colour is three numbers 0 ... 255 (got {shorten(line.strip())})"
                )
            words, colour = words[:-3], (r, g, b)
        name = " ".join(words)
        if not name.isprintable():
            raise DataError(f"{path}, line {number}: a class must have a printable name (got {shorten(name)})")
        if name in colours:
            raise DataError(f"{path}, line {number}: class {shorten(name)} is listed twice")
        colours[name] = colour
    if not 1 <= len(colours) <= MOST_CLASSES:
        raise DataError(f"{path}: there must be 1 ... {MOST_CLASSES} classes (got {len(colours)})")
    return colours


def find_pairs(root: Path, split: str) -> list[ImageLabelPair]:
    list_file = root / f"{split}.txt"
    for images, labels in (
        (root / "images" / split, root / "labels" / split),
        (root / split / "images", root / split / "labels"),
    ):
        if images.is_dir():
            if not labels.is_dir():
                raise DataError(f"folder: there is no folder {labels} for the labels of {images}")
            return list_pairs(images, labels, list_file, required=False)
    for part in (root / "images", root / "labels"):
        if not part.is_dir():
            raise DataError(f"folder: there is no folder {part}; {root} must contain {LAYOUTS}")
    if not list_file.is_file():
        raise DataError(
            f"folder: {root} has no list of the images of '{split}'; write their ids to {list_file}, one per line, "
            f"or move them to {root / 'images' / split} and {root / 'labels' / split}"
        )
    return list_pairs(root / "images", root / "labels", list_file)


def build_remap_table(remap: Mapping[int | str, int], k: int) -> Bytes:
    """Return 256 entries from file value to class number; keys may be strings, since JSON makes them so."""
    table = np.full(256, OUTSIDE, np.uint8)
    table[IGNORE] = IGNORE
    for key, value in remap.items():
        fits = (
            str(key).isdecimal() and int(key) <= 255 and isinstance(value, int) and (0 <= value < k or value == IGNORE)
        )
        if not fits:
            raise OptionError(
                f"folder: remap must map label values 0 ... 255 to classes 0 ... {k - 1} or {IGNORE} "
                f"(got {key!r}: {value!r})"
            )
        table[int(key)] = value
    return table


def build_colour_table(colours: Sequence[Colour | None], ignored: Sequence[int] | None) -> dict[int, int] | None:
    """Return a table from packed colour to class number, None unless every class has a colour."""
    known = [colour for colour in colours if colour is not None]
    if len(known) < len(colours):
        return None
    table = {int(colour @ PACKED): i for i, colour in enumerate(np.array(known))}
    if len(table) < len(known):
        raise DataError("folder: two classes in classes.txt have the same colour")
    if ignored is not None:
        packed = int(np.array(ignored) @ PACKED) if len(ignored) == 3 else None
        if packed is None or packed in table:
            raise OptionError(f"folder: ignore_colour must be three numbers and not a class's colour (got {ignored!r})")
        table[packed] = IGNORE
    return table


def index_colours(path: Path, colours: Bytes, table: Mapping[int, int]) -> Bytes:
    """Return the class numbers of an RGB label.   h w 3   ->   h w"""
    pixels, label = colours.reshape(-1, 3), np.empty(colours.shape[0] * colours.shape[1], np.uint8)
    values, seen = np.full(2**24, OUTSIDE, np.uint8), np.zeros(2**24, np.bool_)  # of every colour
    values[list(table)] = list(table.values())
    for part in range(0, len(pixels), CHUNK):
        packed = pixels[part : part + CHUNK].astype(np.int64) @ PACKED
        label[part : part + CHUNK] = values[packed]
        seen[packed] = True
    unknown = np.flatnonzero(seen & (values == OUTSIDE)).tolist()
    if unknown:
        first = ", ".join(f"{c >> 16} {c >> 8 & 255} {c & 255}" for c in unknown[:3])
        raise DataError(
            f"{path}: {len(unknown)} colours without a class ({first}); add them to classes.txt, or pass the colour of "
            f"unlabelled pixels as ignore_colour="
        )
    return label.reshape(colours.shape[:2])
