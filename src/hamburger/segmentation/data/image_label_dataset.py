"""What all data sets in files share: image and label pairs, class names, and a table from label values to classes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamburger.errors import DataError
from hamburger.segmentation.data.base import SegmentationSet
from hamburger.training.datasets import MOST_CLASSES, OUTSIDE, table_of
from hamburger.training.image_files import SUFFIXES, Bytes, read_image, read_indices
from hamburger.training.packed_images import IGNORE, Colour, Sample


def read_classes(path: Path) -> tuple[list[str], dict[str, Colour | None]]:
    """Names in the order of their numbers, and the colour of each, or None.

    A line is a name, which may hold spaces, and after it nothing or three numbers 0 ... 255.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(
            f"{path}: missing; it names the classes, one a line, in the order of their label values"
        ) from None
    except (OSError, UnicodeDecodeError) as broken:
        raise DataError(f"{path}: no readable text ({broken})") from None
    colours: dict[str, Colour | None] = {}
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            continue
        colour = None
        if len(words) > 3 and all(word.isdecimal() for word in words[-3:]):
            r, g, b = (int(word) for word in words[-3:])
            if max(r, g, b) > 255:
                raise DataError(f"{path}, line {number}: colours are three numbers 0 ... 255, got {line.strip()!r}")
            words, colour = words[:-3], (r, g, b)
        name = " ".join(words)
        if name in colours:
            raise DataError(f"{path}, line {number}: class '{name}' is named twice")
        colours[name] = colour
    if not 1 <= len(colours) <= MOST_CLASSES:
        raise DataError(f"{path}: there must be 1 ... {MOST_CLASSES} classes, found {len(colours)}")
    return list(colours), colours


# ----------------------------------------------------------------------------------------------------------------------
# What all data sets in files share: pairs of image and label, and a table from file values to classes.


class ImageLabelPair(NamedTuple):
    id: str
    image: Path
    label: Path | None  # None where a split has no public labels
    rivals: tuple[Path, ...] = ()  # other images that could as well be meant: a.jpg and a.webp


class ImageLabelSet(SegmentationSet):
    """Images and label files.   `table`: 256 values, from what the file says to class, 255 or OUTSIDE"""

    def __init__(
        self,
        name: str,
        split: str,
        pairs: Sequence[ImageLabelPair],
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
            f"{self.pairs[index].label}: label values {format_values(values)} are no class; known are "
            f"{known[0]} ... {known[-1]} and {IGNORE} for unlabelled"
        )

    def problems(self) -> list[str]:
        from hamburger.segmentation.data.checks import find_problems

        return find_problems(self)


def format_values(values: Sequence[int], most: int = 8) -> str:
    text = ", ".join(map(str, values[:most]))
    return f"{text} ... ({len(values)} of them)" if len(values) > most else text


class ImageIndex:
    """The images below a folder by their ids, `a` or `sub/a`; each folder is listed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listed: dict[str, dict[str, list[Path]]] = {}

    def paths(self, id: str) -> list[Path]:
        """All images of that id, those of the commonest format first."""
        inner, _, stem = id.rpartition("/")
        if inner not in self.listed:
            self.listed[inner] = list_images(self.folder / inner)
        return self.listed[inner].get(stem, [])

    def pair(self, id: str, labels: Path) -> ImageLabelPair:
        """Where there is no image, with the first path that it should have had."""
        first, *others = self.paths(id) or [self.folder / f"{id}{SUFFIXES[0]}"]
        return ImageLabelPair(id, first, labels / f"{id}.png", tuple(others))


def list_images(folder: Path) -> dict[str, list[Path]]:
    """From stem to paths."""
    found: dict[str, list[Path]] = {}
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if Path(entry.name).suffix.lower() in SUFFIXES and entry.is_file()]
    except OSError:  # that it is not there shows at each of its images
        return found
    for name in sorted(names, key=lambda name: (SUFFIXES.index(Path(name).suffix.lower()), name)):
        found.setdefault(Path(name).stem, []).append(folder / name)
    return found


def read_ids(path: Path, images: ImageIndex | None = None) -> list[str]:
    """The ids of a split, from lines such as `a`, `a.jpg`, `my photo 1`, `sub/a`, `a -1`, `images/a.jpg labels/a.png`.

    A line may hold more than its id, and an id may hold spaces and folders: the longest reading of which there is an
    image is taken.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: missing; it lists the images of the split, one a line") from None
    except (OSError, UnicodeDecodeError) as broken:
        raise DataError(f"{path}: no readable list ({broken})") from None
    return [resolve_line(line.strip(), images) for line in lines if line.strip()]


def resolve_line(line: str, images: ImageIndex | None) -> str:
    for id in candidate_ids(line) if images is not None else ():
        if images is not None and images.paths(id):
            return id
    # none is there: the one that a person would look for
    likely = strip_suffix(line.split()[0] if _has_more(line) else line)
    inner, _, name = likely.rpartition("/")
    return likely if images is not None and inner and (images.folder / inner).is_dir() else name


def candidate_ids(line: str) -> Iterator[str]:
    """What a line may mean: all of it, then its first word; each as it is, then without its leading folders."""
    word, *rest = line.split()
    # a missing `my photo 1` must not become the image `my`
    for text in (line, word) if len(rest) == 1 or _has_more(line) else (line,):
        for folders in range(word.count("/") + 1):
            inner = text.split("/", folders)[-1]
            if not {"", ".", ".."} & set(inner.split("/")):
                yield strip_suffix(inner)


def strip_suffix(name: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    return stem if stem and f"{dot}{suffix}".lower() in SUFFIXES else name


def _has_more(line: str) -> bool:
    """Whether the words after the first are flags or paths of labels, so that they belong to no name."""
    first, *rest = line.split()
    flags, files = ("-1", "0", "1", first), strip_suffix(first) != first
    return bool(rest) and all(word in flags or "/" in word or (files and strip_suffix(word) != word) for word in rest)


def list_ids(folder: Path) -> list[str]:
    return sorted({path.stem for path in folder.iterdir() if path.suffix.lower() in SUFFIXES})
