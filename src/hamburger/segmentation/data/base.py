"""The segmentation data set interface and registry, and the base of all sets of image and label files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamburger.errors import DataError
from hamburger.registry import Registry
from hamburger.training.datasets import (
    IGNORE,
    OUTSIDE,
    Sample,
    SampleSet,
    build_label_table,
    create_from_registry,
    select_classes,
)
from hamburger.training.image_files import SUFFIXES, Bytes, Colour, read_image, read_indices
from hamburger.training.safe_files import check_relative, read_lines

OTHER_SUFFIXES = (".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class Inspection(NamedTuple):
    """One sample as far as it can be read, and everything that is wrong with it."""

    image: Tensor | None  # 3 h w
    label: Bytes | None  # h w
    problems: list[str]


class SegmentationSet(SampleSet[Sample]):
    """One split of a data set."""

    classes: tuple[str, ...]
    palette: tuple[Colour, ...]  # one per class

    def inspect(self, index: int) -> Inspection:
        """Return a sample with its problems; a generated one has none."""
        image, label = self[index]
        return Inspection(image, label.numpy(), [])


# constructors take (split, root=..., **options); generated sets take no root
datasets: Registry[SegmentationSet] = Registry("dataset")


def create_dataset(name: str, split: str, root: str | Path | None = None, **options: Any) -> SegmentationSet:
    """Return a split of the named data set. `root` is its folder; generated sets take none."""
    return create_from_registry(datasets, name, split, root, **options)


class ImageLabelPair(NamedTuple):
    id: str
    image: Path
    label: Path | None  # None if the split has no public labels
    rivals: tuple[Path, ...] = ()  # other images with the same id, such as a.webp next to a.jpg


class ImageLabelSet(SegmentationSet):
    """Images and label files.

    `classes` and `palette` are those of the label values 0, 1, ...; `keep` selects some of them by name or number, in
    that order. Pixels of other classes, and of the values `void`, become 255.
    """

    in_files = True

    def __init__(
        self,
        name: str,
        split: str,
        pairs: Sequence[ImageLabelPair],
        *,
        classes: Sequence[str],
        palette: Sequence[Colour],
        keep: Sequence[str | int] | str | None = None,
        void: Iterable[int] = (),
    ) -> None:
        values = select_classes(name, classes, keep)
        self.name, self.split, self.pairs = name, split, tuple(pairs)
        self.ids = [pair.id for pair in self.pairs]
        self.classes, self.palette = tuple(classes[i] for i in values), tuple(palette[i] for i in values)
        # from value in the file to class, 255 or OUTSIDE
        others = (i for i in range(len(classes)) if i not in values)
        self.table = build_label_table(values, ignored=(*void, *others))

    @property
    def labelled(self) -> bool:
        return all(pair.label is not None for pair in self.pairs)

    def image_paths(self) -> list[Path]:
        """Return the paths of the images, for prediction; a split without labels allows nothing else."""
        return [pair.image for pair in self.pairs]

    def read_raw(self, path: Path) -> Bytes:
        """Return a label with the values of the file.   h w"""
        return read_indices(path)

    def explain_unlabelled(self) -> str:
        return (
            f"{self.name}: split '{self.split}' has no labels, so it cannot be used for training or evaluation; "
            f"predict its images with `ham predict` on the paths of image_paths()"
        )

    def read(self, index: int) -> Sample:
        image, label, problems = self.inspect(index)
        if problems or image is None or label is None:
            raise DataError("\n".join(problems))
        return Sample(image, torch.from_numpy(label))

    def inspect(self, index: int) -> Inspection:
        pair = self.pairs[index]
        if (path := pair.label) is None:
            raise DataError(self.explain_unlabelled())
        image = label = None
        problems = []
        try:
            image = read_image(pair.image)
        except DataError as broken:
            problems.append(str(broken))
        try:
            raw = self.read_raw(path)
            label = self.table[raw]
        except DataError as broken:
            other = next((file for suffix in OTHER_SUFFIXES if (file := path.with_suffix(suffix)).is_file()), None)
            if other is None or path.is_file():
                problems.append(str(broken))
            else:
                problems.append(f"{path}: missing, but {other.name} exists; convert labels to PNG, which is lossless")
        if label is not None and (label == OUTSIDE).any():
            known = np.flatnonzero(self.table[:IGNORE] != OUTSIDE).tolist()
            meaning = "unlabelled" if self.table[IGNORE] == IGNORE else f"'{self.classes[self.table[IGNORE]]}'"
            problems.append(
                f"{path}: label values {_format_values(np.unique(raw[label == OUTSIDE]).tolist())} are not a class; "
                f"expected {known[0]} ... {known[-1]}, or {IGNORE} for {meaning}"
            )
        if image is not None and label is not None and image.shape[1:] != label.shape:
            (h, w), (height, width) = image.shape[1:], label.shape
            hint = "; the image may be rotated by its EXIF orientation: save it upright or rotate the label"
            problems.append(
                f"{path}: label of {width} x {height} pixels for an image of {w} x {h} ({pair.image})"
                f"{hint if (h, w) == (width, height) else ''}"
            )
        return Inspection(image, label, problems)


def _format_values(values: Sequence[int], most: int = 8) -> str:
    text = ", ".join(map(str, values[:most]))
    return f"{text} ... ({len(values)} of them)" if len(values) > most else text


# -- lists of ids ------------------------------------------------------------------------------------------------------


class ImageIndex:
    """The images below a folder by their ids, `a` or `sub/a`; each folder is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listed: dict[str, dict[str, list[Path]]] = {}
        self.folders: dict[str, bool] = {}

    def paths(self, id: str) -> list[Path]:
        """Return all images with that id, the most common format first."""
        inner, _, stem = id.rpartition("/")
        if inner not in self.listed:
            if not _is_folder(self.folder, inner):
                return []
            self.listed[inner] = list_images(self.folder / inner)
        return self.listed[inner].get(stem, [])

    def has_folder(self, name: str) -> bool:
        """Return whether there is a folder of that name directly below."""
        if name not in self.folders:
            self.folders[name] = _is_folder(self.folder, name)
        return self.folders[name]

    def pair(self, id: str, labels: Path) -> ImageLabelPair:
        """Return the pair of an id; if there is no image, with the path that was expected."""
        first, *others = self.paths(id) or [self.folder / f"{id}{SUFFIXES[0]}"]
        return ImageLabelPair(id, first, labels / f"{id}.png", tuple(others))


def list_pairs(images: Path, labels: Path, list_file: Path, *, required: bool = True) -> list[ImageLabelPair]:
    """Return the pairs of the ids in a list; if it is not `required` and missing, those of all images of the folder."""
    index = ImageIndex(images)
    ids = read_ids(list_file, index) if required or list_file.is_file() else sorted(list_images(images))
    return [index.pair(i, labels) for i in ids]


def list_images(folder: Path) -> dict[str, list[Path]]:
    """Return the images of a folder, from stem to paths."""
    try:
        files = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
    except OSError:  # a missing folder is reported with each of its images
        return {}
    paths: dict[str, list[Path]] = {}
    for path in sorted(files, key=lambda path: (SUFFIXES.index(path.suffix.lower()), path.name)):
        paths.setdefault(path.stem, []).append(path)
    return paths


def read_ids(path: Path, images: ImageIndex | None = None) -> list[str]:
    """Return the ids of a split, one per line of the file.

    Lines look like `a`, `a.jpg`, `my photo 1`, `sub/a`, `a -1` or `images/a.jpg labels/a.png`: a line may contain more
    than its id, and an id may contain spaces and folders. The longest reading that has an image is used. An id that
    leaves the folder of the images is an error.
    """
    lines = read_lines(path, "the images of the split, one per line")
    return [
        check_relative(f"{path}, line {number}", _resolve_line(line.strip(), images))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _resolve_line(line: str, images: ImageIndex | None) -> str:
    word, *rest = line.split()
    is_file = _strip_suffix(word) != word
    readings = [line]
    # flags and label paths are not part of the id; but if `my photo 1` is missing, do not take the image `my`
    if all(w in ("-1", "0", "1", word) or "/" in w or (is_file and _strip_suffix(w) != w) for w in rest):
        readings.append(word)
    # where no image matches: the reading that a person would expect
    likely = _strip_suffix(readings[-1])
    inner, _, name = likely.rpartition("/")
    if images is None:
        return name
    for text in readings:
        parts = _strip_suffix(text).split("/")
        inside = max((place for place, part in enumerate(parts, start=1) if part in ("", ".", "..")), default=0)
        for start in range(inside, word.count("/") + 1):
            if start + 1 < len(parts) and not images.has_folder(parts[start]):
                continue
            if images.paths(id := "/".join(parts[start:])):
                return id
    return likely if inner and _is_folder(images.folder, inner) else name


def _is_folder(root: Path, inner: str) -> bool:
    return os.path.isdir(f"{root}/{inner}")  # noqa: PTH112 - Path.is_dir() would raise for long names


def _strip_suffix(name: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    return stem if stem and f"{dot}{suffix}".lower() in SUFFIXES else name
