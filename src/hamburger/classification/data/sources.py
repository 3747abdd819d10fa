"""`figures` (generated), `folder` and `imagenet` (one directory per class), and `tiny-imagenet`."""

from __future__ import annotations

import colorsys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hamburger.classification.data.base import ImageChunk, ImageSource, image_sources
from hamburger.errors import DataError, check_choice, check_count, check_seed, shorten, show
from hamburger.training.image_files import KINDS, SUFFIXES, read_square
from hamburger.training.loader import KeyedRng
from hamburger.training.safe_files import read_lines

FIGURES = {"train": 4096, "val": 1024}  # images per split
FORMS = ("disc", "square", "cross", "ring")
FINE = 4  # supersampling factor per axis


@image_sources.register("figures")
class Figures(ImageSource):
    """Generated images of one bright shape on a dim background; the shape is the class.

    Simple enough for a few minutes of GAN training: whether shape, colour, position and size were learned can be seen
    by eye. An image is a function of (seed, split, index) alone, drawn from raw PCG64 integers as in `patchwork`.
    """

    name = "figures"
    embedded = True
    classes = FORMS

    def __init__(self, split: str = "train", *, size: int = 32, length: int | None = None, seed: int = 0) -> None:
        check_choice(self.name, "split", split, FIGURES)
        check_count(self.name, "size", size, least=16)
        check_seed(self.name, seed)
        self.split, self.size, self.seed = split, size, seed
        self.length = FIGURES[split] if length is None else length
        check_count(self.name, "length", self.length, least=1)

    def __len__(self) -> int:
        return self.length

    def read(self, index: int) -> ImageChunk:
        rng = KeyedRng(self.seed, list(FIGURES).index(self.split), index)
        label = index % len(FORMS)
        hue, place_y, place_x, reach, ground = (rng.uniform() for _ in range(5))
        radius = self.size * (0.2 + 0.12 * reach)
        room = self.size - 2 * radius
        centre = (radius + room * place_y, radius + room * place_x)
        inside = _coverage(FORMS[label], self.size, centre, radius)
        ink = np.array(colorsys.hsv_to_rgb(hue, 0.85, 1.0))
        paper = np.array(colorsys.hsv_to_rgb((hue + 0.5) % 1, 0.4, 0.15 + 0.2 * ground))
        image = 255 * (inside * ink[:, None, None] + (1 - inside) * paper[:, None, None])
        return ImageChunk(np.rint(image).astype(np.uint8)[None], np.array([label], np.int64))


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


# -- one directory per class -------------------------------------------------------------------------------------------


SQUARE = "central square, triangle filter"  # how files become pixels, as part of their cache key
IMAGENET_CLASSES = 1000
LabelledFiles = tuple[tuple[str, ...], list[tuple[Path, int]]]  # classes; files with their class, sorted by it and path
SPLITS = ("train", "val", "valid", "validation", "test")


@image_sources.register("folder")
class ClassFolders(ImageSource):
    """Classes are the directories of `root/SPLIT`, or of `root` if there is no such directory, sorted by name.

    Images may be at any depth below, as in the `images` folders of Tiny-ImageNet. All are cropped to the largest
    central square and resized.
    """

    name = "folder"

    def __init__(self, split: str = "train", *, root: Path, size: int) -> None:
        check_count(self.name, "size", size, least=4)
        self.split, self.size, self.root = split, size, Path(root)
        folder = self._find_split()
        self.classes, self.files = self._label_images(folder, self._list_images(folder))

    def _find_split(self) -> Path:
        """Return the folder of the split; a folder without splits is only the training split."""
        if not self.root.is_dir():
            raise DataError(f"{self.name}: there is no folder {self.root}; pass one with a directory per class")
        if (self.root / self.split).is_dir():
            return self.root / self.split
        others = [name for name in SPLITS if any(entry.is_dir() for entry in (self.root / name).glob("*"))]
        if others or self.split != SPLITS[0]:
            has = f"it has {', '.join(others)}" if others else f"its classes are the split '{SPLITS[0]}'"
            raise DataError(f"{self.name}: there is no split '{self.split}' in {self.root}; {has}")
        return self.root

    def _list_folders(self, folder: Path) -> list[str]:
        """Return the names of the directories in a folder that are not hidden; none if it does not exist."""
        entries = folder.iterdir() if folder.is_dir() else ()
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))

    def _list_images(self, folder: Path) -> dict[str, list[Path]]:
        """Return the images at any depth below each directory of a folder."""
        files = {name: (folder / name).rglob("*") for name in self._list_folders(folder)}
        return {name: sorted(p for p in paths if _is_image(p) and p.is_file()) for name, paths in files.items()}

    def _label_images(self, folder: Path, images: dict[str, list[Path]]) -> LabelledFiles:
        if not any(images.values()):
            raise DataError(
                f"{self.name}: {folder} has no directory with images; it needs one directory per class, such as "
                f"{folder / 'cats' / 'first.jpg'}"
            )
        empty = [f"{folder / name}: no {KINDS} file" for name, paths in images.items() if not paths]
        if empty:
            raise DataError(f"{self.name}: classes without images: {'; '.join(empty)}; fill or remove them", empty)
        return tuple(images), [(path, i) for i, paths in enumerate(images.values()) for path in paths]

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> ImageChunk:
        path, label = self.files[index]
        return ImageChunk(read_square(path, self.size)[None], np.array([label], np.int64))

    def origin(self) -> Any:
        stats = [(path, path.stat(), label) for path, label in self.files]
        return SQUARE, [(str(p.relative_to(self.root)), s.st_size, s.st_mtime_ns, label) for p, s, label in stats]


def _is_image(path: Path) -> bool:
    """Return whether the name is that of an image, and not hidden as the metadata files of some archivers are."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


@image_sources.register("imagenet")
class ImageNet(ClassFolders):
    """The 1,000 training or validation folders of ILSVRC 2012: n01440764 ... n15075141.

    `any_classes` accepts any number of classes, for a subset.
    """

    name = "imagenet"

    def __init__(self, split: str = "train", *, root: Path, size: int = 128, any_classes: bool = False) -> None:
        super().__init__(split, root=root, size=size)
        foreign = [name for name in self.classes if not (name[0] == "n" and name[1:].isdigit())]
        if foreign:
            raise DataError(
                f"imagenet: {self.root} has directories that are not WordNet ids (n01440764, ...): "
                f"{', '.join(foreign[:5])}; for your own images use --set data.name=folder"
            )
        if not any_classes and len(self.classes) != IMAGENET_CLASSES:
            raise DataError(
                f"imagenet: {self.root} must have {IMAGENET_CLASSES} classes (got {len(self.classes)}); complete it, "
                f"or accept any number with --set data.options.any_classes=true"
            )


# -- Tiny-ImageNet -----------------------------------------------------------------------------------------------------
#
# The official validation split is one folder of images, and a text file with the class of each:
#
#     val/images/val_0.JPEG ...      val/val_annotations.txt: val_0.JPEG, n03444034, 0, 32, 44, 62, tab-separated
#
# The four numbers are a box, which is not used here.


USUAL_NAMES = ("tiny-imagenet-200", "tiny_imagenet10")
FOLDER, TEXT = "images", "val_annotations.txt"
SHOWN = 5


@image_sources.register("tiny-imagenet")
class TinyImageNet(ClassFolders):
    """Classes are directories; 'val' may also be as published: `val/images` and `val/val_annotations.txt`.

    `root` is the folder with train/, or its parent.
    """

    name = "tiny-imagenet"

    def __init__(self, split: str = "train", *, root: Path, size: int = 64) -> None:
        folders = (Path(root), *(Path(root) / name for name in USUAL_NAMES))
        super().__init__(split, root=next((f for f in folders if (f / split).is_dir()), folders[0]), size=size)

    def _label_images(self, folder: Path, images: dict[str, list[Path]]) -> LabelledFiles:
        if list(images) != [FOLDER]:
            return super()._label_images(folder, images)
        text, paths = folder / TEXT, images[FOLDER]
        if not text.is_file():
            raise DataError(
                f"{self.name}: the images of '{self.split}' in {self.root} have no classes, since there is no "
                f"{self.split}/{TEXT}; the official 'test' is published without one, use 'val': --split val, or "
                f"data.split=val"
            )
        annotations = read_annotations(text, [path.name for path in paths])
        names = sorted(set(annotations.values()))
        trained = self._list_folders(folder.with_name("train"))
        unknown = sorted(set(names).difference(trained)) if trained else []
        if unknown:
            raise DataError(
                f"{text}: {len(unknown)} of its {len(names)} classes have no folder in train "
                f"({', '.join(unknown[:SHOWN])}); use both from one download"
            )
        classes = trained or names  # in the order of the training folders, so that numbers agree between splits
        numbers = {name: number for number, name in enumerate(classes)}
        files = [(path, numbers[annotations[path.name]]) for path in paths]
        return tuple(classes), sorted(files, key=lambda file: file[1])


def read_annotations(path: Path, images: Collection[str]) -> dict[str, str]:
    """Return the class of every image by its name; raise a DataError that lists the problems of the file."""
    problems: list[str] = []
    annotations: dict[str, str] = {}
    for number, line in enumerate(read_lines(path, "the class of each image"), start=1):
        words = line.split()
        if len(words) == 1:
            problems.append(f"line {number} has no class: {shorten(line.strip())}")
        elif words and (other := annotations.setdefault(words[0], words[1])) != words[1]:
            name, one, two = map(show, (words[0], words[1], other))
            problems.append(f"line {number} gives {name} the class {one}, another line {two}")
    problems += [f"{show(name)} has no line" for name in sorted(set(images) - annotations.keys())]
    problems += [f"{show(name)} has a line but no file" for name in sorted(annotations.keys() - set(images))]
    if problems:
        more = f"; ... {len(problems)} in all" if len(problems) > SHOWN else ""
        raise DataError(
            f"{path}: {'; '.join(problems[:SHOWN])}{more}; expected one line per image in {FOLDER}: "
            f"its name, a tab and its class; unpack the archive again",
            problems,
        )
    return annotations
