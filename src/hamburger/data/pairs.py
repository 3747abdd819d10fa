"""What all data sets in files share: pairs of image and label, and a table from file values to classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamburger.data.base import IGNORE, Colour, Sample, SegmentationSet
from hamburger.data.images import SUFFIXES, Bytes, read_image, read_indices
from hamburger.data.subset import OUTSIDE, table_of
from hamburger.errors import DataError


class Pair(NamedTuple):
    id: str
    image: Path
    label: Path | None  # None where a split has no public labels


class PairSet(SegmentationSet):
    """Images and label files.   `table`: 256 values, from what the file says to class, 255 or OUTSIDE"""

    def __init__(
        self,
        name: str,
        split: str,
        pairs: Sequence[Pair],
        *,
        classes: Sequence[str],
        palette: Sequence[Colour],
        table: Bytes | None = None,
    ) -> None:
        self.name, self.split, self.pairs = name, split, tuple(pairs)
        self.ids = [pair.id for pair in self.pairs]
        self.classes, self.palette = tuple(classes), tuple(palette)
        self.table = table_of(range(len(self.classes))) if table is None else table

    def meaning(self) -> str:
        """All that decides what a label file means; findings of another meaning are not these."""
        return repr((self.name, self.split, self.classes, self.palette, self.table.tolist()))

    @property
    def labelled(self) -> bool:
        return all(pair.label is not None for pair in self.pairs)

    def image_paths(self) -> list[Path]:
        """The images alone, for prediction; the only use of a split without labels."""
        return [pair.image for pair in self.pairs]

    def read_image(self, index: int) -> Tensor:
        """3 h w"""
        return read_image(self.pairs[index].image)

    def read_raw(self, index: int) -> Bytes:
        """h w, the label as the file has it."""
        return read_indices(self.label_path(index))

    def label_path(self, index: int) -> Path:
        path = self.pairs[index].label
        if path is None:
            raise DataError(
                f"{self.name}: split '{self.split}' has no labels, so it can neither train nor score; "
                f"predict its images with `ham predict` on the paths of image_paths()"
            )
        return path

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name}: there are {len(self)} samples, index {index} is none of them")
        raw = self.read_raw(index)
        image, label = self.read_image(index), np.take(self.table, raw)
        if image.shape[-2:] != label.shape:
            raise DataError(self.mismatch(index, tuple(image.shape[-2:]), label.shape))
        if (label == OUTSIDE).any():
            raise DataError(self.outside(index, raw))
        return Sample(image, torch.from_numpy(label))

    def mismatch(self, index: int, image: tuple[int, ...], label: tuple[int, ...]) -> str:
        pair = self.pairs[index]
        hint = ""
        if image == label[::-1] and image != label:
            hint = "; is the image turned by its EXIF orientation, which is applied? save it upright or turn the label"
        return (
            f"{pair.label}: label of {label[1]} x {label[0]} pixels for an image of {image[1]} x {image[0]} "
            f"({pair.image}){hint}"
        )

    def outside(self, index: int, raw: Bytes) -> str:
        values = np.unique(raw[self.table[raw] == OUTSIDE]).tolist()
        known = np.flatnonzero((self.table != OUTSIDE) & (np.arange(256) != IGNORE)).tolist()
        return (
            f"{self.pairs[index].label}: label values {shorten(values)} are no class; known are "
            f"{known[0]} ... {known[-1]} and {IGNORE} for unlabelled"
        )

    def problems(self) -> list[str]:
        from hamburger.data.checks import find_problems

        return find_problems(self)


def shorten(values: Sequence[int], most: int = 8) -> str:
    text = ", ".join(map(str, values[:most]))
    return f"{text} ... ({len(values)} of them)" if len(values) > most else text


def read_list(path: Path) -> list[str]:
    """The ids of a split: the first word of every line that has one; a suffix or a folder in front is dropped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: missing; it lists the images of the split, one a line") from None
    except (OSError, UnicodeDecodeError) as broken:
        raise DataError(f"{path}: no readable list ({broken})") from None
    words = [line.split()[0] for line in lines if line.split()]
    return [Path(word).stem if Path(word).suffix.lower() in SUFFIXES else Path(word).name for word in words]


def find_image(folder: Path, id: str, suffixes: Sequence[str] = SUFFIXES) -> Path:
    """The image of that name, whatever its format; where there is none, the first path that it should have had."""
    return next((path for path in candidates(folder, id, suffixes) if path.is_file()), folder / f"{id}{suffixes[0]}")


def candidates(folder: Path, id: str, suffixes: Sequence[str]) -> list[Path]:
    return [folder / f"{id}{suffix}" for lower in suffixes for suffix in (lower, lower.upper())]


def check_root(name: str, root: Path, layouts: str) -> Path:
    """The folder itself, or an error that says what it should hold."""
    if not root.is_dir():
        raise DataError(f"{name}: there is no folder {root}; it should hold {layouts}")
    return root
