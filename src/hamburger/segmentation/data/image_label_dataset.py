"""Base of all data sets of image and label files: reads pairs, class names and lists of ids."""

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
from hamburger.training.datasets import IGNORE, MOST_CLASSES, OUTSIDE, Colour, Sample, build_label_table
from hamburger.training.image_files import SUFFIXES, Bytes, read_image, read_indices


def read_classes(path: Path) -> tuple[list[str], dict[str, Colour | None]]:
    """Return the class names of a classes.txt in order, and the colour of each or None.

    A line is a name, which may contain spaces, optionally followed by three numbers 0 ... 255.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(
            f"{path}: missing; it must list the classes, one per line, in the order of their label values"
        ) from None
    except (OSError, UnicodeDecodeError) as broken:
        raise DataError(f"{path}: not a readable text file ({broken})") from None
    colours: dict[str, Colour | None] = {}
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            continue
        colour = None
        if len(words) > 3 and all(word.isdecimal() for word in words[-3:]):
            r, g, b = (int(word) for word in words[-3:])
            if max(r, g, b) > 255:
                raise DataError(f"{path}, line {number}: a colour is three numbers 0 ... 255 (got {line.strip()!r})")
            words, colour = words[:-3], (r, g, b)
        name = " ".join(words)
        if name in colours:
            raise DataError(f"{path}, line {number}: class '{name}' is listed twice")
        colours[name] = colour
    if not 1 <= len(colours) <= MOST_CLASSES:
        raise DataError(f"{path}: there must be 1 ... {MOST_CLASSES} classes (got {len(colours)})")
    return list(colours), colours


class ImageLabelPair(NamedTuple):
    id: str
    image: Path
    label: Path | None  # None if the split has no public labels
    rivals: tuple[Path, ...] = ()  # other images with the same id, such as a.webp next to a.jpg


class ImageLabelSet(SegmentationSet):
    """Images and label files.   `table`: 256 entries from value in the file to class, 255 or OUTSIDE"""

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
        self.table = build_label_table(range(len(self.classes))) if table is None else table

    def meaning(self) -> str:
        """Return everything that decides what a label file means, as a key for cached check results."""
        return repr((self.name, self.split, self.classes, self.palette, self.table.tolist()))

    @property
    def labelled(self) -> bool:
        return all(pair.label is not None for pair in self.pairs)

    def image_paths(self) -> list[Path]:
        """Return the paths of the images, for prediction; a split without labels allows nothing else."""
        return [pair.image for pair in self.pairs]

    def read_image(self, index: int) -> Tensor:
        """3 h w"""
        return read_image(self.pairs[index].image)

    def read_raw(self, index: int) -> Bytes:
        """Return the label with the values of the file.   h w"""
        return read_indices(self.label_path(index))

    def label_path(self, index: int) -> Path:
        path = self.pairs[index].label
        if path is None:
            raise DataError(
                f"{self.name}: split '{self.split}' has no labels, so it cannot be used for training or evaluation; "
                f"predict its images with `ham predict` on the paths of image_paths()"
            )
        return path

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name}: index out of range (got {index} for {len(self)} samples)")
        raw = self.read_raw(index)
        image, label = self.read_image(index), np.take(self.table, raw)
        if image.shape[-2:] != label.shape:
            raise DataError(self.explain_mismatch(index, tuple(image.shape[-2:]), label.shape))
        if (label == OUTSIDE).any():
            raise DataError(self.explain_outside(index, raw))
        return Sample(image, torch.from_numpy(label))

    def explain_mismatch(self, index: int, image: tuple[int, ...], label: tuple[int, ...]) -> str:
        pair = self.pairs[index]
        hint = ""
        if image == label[::-1] and image != label:
            hint = "; the image may be rotated by its EXIF orientation: save it upright or rotate the label"
        return (
            f"{pair.label}: label of {label[1]} x {label[0]} pixels for an image of {image[1]} x {image[0]} "
            f"({pair.image}){hint}"
        )

    def explain_outside(self, index: int, raw: Bytes) -> str:
        values = np.unique(raw[self.table[raw] == OUTSIDE]).tolist()
        known = np.flatnonzero((self.table != OUTSIDE) & (np.arange(256) != IGNORE)).tolist()
        return (
            f"{self.pairs[index].label}: label values {format_values(values)} are not a class; expected "
            f"{known[0]} ... {known[-1]}, or {IGNORE} for unlabelled"
        )

    def problems(self) -> list[str]:
        from hamburger.segmentation.data.checks import inspect_dataset

        return inspect_dataset(self).problems


def format_values(values: Sequence[int], most: int = 8) -> str:
    text = ", ".join(map(str, values[:most]))
    return f"{text} ... ({len(values)} of them)" if len(values) > most else text


class ImageIndex:
    """The images below a folder by their ids, `a` or `sub/a`; each folder is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listed: dict[str, dict[str, list[Path]]] = {}

    def paths(self, id: str) -> list[Path]:
        """Return all images with that id, the most common format first."""
        inner, _, stem = id.rpartition("/")
        if inner not in self.listed:
            self.listed[inner] = list_images(self.folder / inner)
        return self.listed[inner].get(stem, [])

    def pair(self, id: str, labels: Path) -> ImageLabelPair:
        """Return the pair of an id; if there is no image, with the path that was expected."""
        first, *others = self.paths(id) or [self.folder / f"{id}{SUFFIXES[0]}"]
        return ImageLabelPair(id, first, labels / f"{id}.png", tuple(others))


def list_images(folder: Path) -> dict[str, list[Path]]:
    """Return the images of a folder, from stem to paths."""
    paths: dict[str, list[Path]] = {}
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if Path(entry.name).suffix.lower() in SUFFIXES and entry.is_file()]
    except OSError:  # a missing folder is reported with each of its images
        return paths
    for name in sorted(names, key=lambda name: (SUFFIXES.index(Path(name).suffix.lower()), name)):
        paths.setdefault(Path(name).stem, []).append(folder / name)
    return paths


def read_ids(path: Path, images: ImageIndex | None = None) -> list[str]:
    """Return the ids of a split, one per line of the file.

    Lines look like `a`, `a.jpg`, `my photo 1`, `sub/a`, `a -1` or `images/a.jpg labels/a.png`: a line may contain more
    than its id, and an id may contain spaces and folders. The longest reading that has an image is used.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: missing; it must list the images of the split, one per line") from None
    except (OSError, UnicodeDecodeError) as broken:
        raise DataError(f"{path}: not a readable list ({broken})") from None
    return [resolve_line(line.strip(), images) for line in lines if line.strip()]


def resolve_line(line: str, images: ImageIndex | None) -> str:
    for id in candidate_ids(line) if images is not None else ():
        if images is not None and images.paths(id):
            return id
    # no image matches: return the reading that a person would expect
    likely = strip_suffix(line.split()[0] if _has_more(line) else line)
    inner, _, name = likely.rpartition("/")
    return likely if images is not None and inner and (images.folder / inner).is_dir() else name


def candidate_ids(line: str) -> Iterator[str]:
    """Yield the readings of a line: all of it, then its first word; each as is, then without leading folders."""
    word, *rest = line.split()
    # if `my photo 1` is missing, do not take the image `my`
    for text in (line, word) if len(rest) == 1 or _has_more(line) else (line,):
        for folders in range(word.count("/") + 1):
            inner = text.split("/", folders)[-1]
            if not {"", ".", ".."} & set(inner.split("/")):
                yield strip_suffix(inner)


def strip_suffix(name: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    return stem if stem and f"{dot}{suffix}".lower() in SUFFIXES else name


def _has_more(line: str) -> bool:
    """Return whether the words after the first are flags or label paths instead of part of the id."""
    first, *rest = line.split()
    flags, files = ("-1", "0", "1", first), strip_suffix(first) != first
    return bool(rest) and all(word in flags or "/" in word or (files and strip_suffix(word) != word) for word in rest)


def list_ids(folder: Path) -> list[str]:
    return sorted({path.stem for path in folder.iterdir() if path.suffix.lower() in SUFFIXES})
