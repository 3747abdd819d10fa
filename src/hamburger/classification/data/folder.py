"""`folder` and `imagenet`: one directory per class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hamburger.classification.data.base import ImageChunk, ImageSource, describe_file, image_sources
from hamburger.errors import DataError, check_count
from hamburger.training.image_files import SUFFIXES, read_square

SQUARE = "central square, triangle filter"
IMAGENET_CLASSES = 1000
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
        if not self.root.is_dir():
            raise DataError(f"{self.name}: there is no folder {self.root}; pass one with a directory per class")
        split_folder = self._find_split()
        folders = sorted(entry for entry in split_folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        self.files: list[tuple[Path, int]] = []
        empty = []
        for label, folder in enumerate(folders):
            paths = sorted(
                path
                for path in folder.rglob("*")
                if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
            )
            self.files += [(path, label) for path in paths]
            if not paths:
                empty.append(f"{folder}: no JPEG, PNG or WebP file")
        if not folders or not self.files:
            raise DataError(
                f"{self.name}: {split_folder} has no directory with images; it needs one directory per class, such as "
                f"{split_folder / 'cats' / 'first.jpg'}"
            )
        if empty:
            raise DataError(f"{self.name}: classes without images: {'; '.join(empty)}; fill or remove them", empty)
        self.classes = tuple(folder.name for folder in folders)

    def _find_split(self) -> Path:
        """Return the folder of the split; a folder without splits is only the training split."""
        if (self.root / self.split).is_dir():
            return self.root / self.split
        others = [name for name in SPLITS if any(entry.is_dir() for entry in (self.root / name).glob("*"))]
        if others or self.split != SPLITS[0]:
            has = f"it has {', '.join(others)}" if others else f"its classes are the split '{SPLITS[0]}'"
            raise DataError(f"{self.name}: there is no split '{self.split}' in {self.root}; {has}")
        return self.root

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> ImageChunk:
        path, label = self.files[index]
        return ImageChunk(read_square(path, self.size)[None], np.array([label], np.int64))

    def origin(self) -> Any:
        return [[*describe_file(path, self.root), label] for path, label in self.files]

    def transform(self) -> str:
        return f"{SQUARE} to {self.size}"


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
