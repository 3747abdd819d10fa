"""`tiny-imagenet`: classes of Tiny-ImageNet at 64 pixels, from the unpacked folder or straight from a tar."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hamburger.data.generation.base import Piece, Source, image_sources
from hamburger.data.generation.folder import SQUARE, ClassFolders
from hamburger.data.images import SUFFIXES, read_square
from hamburger.errors import DataError, check_count

SIZE = 64
PLACES = ("tiny_imagenet10.tar", "tiny-imagenet-200.tar", "tiny_imagenet10", "tiny-imagenet-200")


class ArchivedFolders(Source):
    """Class directories inside an uncompressed tar: `.../SPLIT/CLASS/...`, read where they lie."""

    name = "tiny-imagenet"

    def __init__(self, split: str, *, root: Path, size: int) -> None:
        check_count(self.name, "size", size, least=4)
        self.split, self.size, self.root = split, size, root
        try:
            with tarfile.open(root, "r:") as archive:
                members = [(member.name, member.offset_data, member.size) for member in archive if member.isreg()]
        except (tarfile.TarError, OSError, EOFError) as broken:
            raise DataError(
                f"{root}: no readable tar ({broken}); one that is compressed must be unpacked first"
            ) from None
        found = []
        for name, offset, length in members:
            parts = PurePosixPath(name).parts
            hidden = parts[-1].startswith(".")  # such as what other systems' archivers put beside each file
            if split in parts[:-2] and not hidden and PurePosixPath(name).suffix.lower() in SUFFIXES:
                found.append((parts[parts.index(split) + 1], name, offset, length))
        if not found:
            raise DataError(f"{root}: there is no {split}/CLASS/IMAGE in it; name a tar of class directories")
        found.sort()
        self.classes = tuple(sorted({entry[0] for entry in found}))
        self.files = found

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> Piece:
        kind, name, offset, length = self.files[index]
        with self.root.open("rb") as file:  # one handle each: threads do not share a place in the file
            file.seek(offset)
            content = file.read(length)
        image = read_square(self.root / name, self.size, content)
        return Piece(image[None], np.array([self.classes.index(kind)], np.int64))

    def origin(self) -> Any:
        stat = self.root.stat()
        return [self.root.name, stat.st_size, stat.st_mtime_ns, [list(entry) for entry in self.files]]

    def transform(self) -> str:
        return f"{SQUARE} to {self.size}"


@image_sources.register("tiny-imagenet")
def tiny_imagenet(split: str = "train", *, root: Path, size: int = SIZE) -> Source:
    """`root` is the tar, the folder that holds train/, or a folder with either of them."""
    root = Path(root)
    for place in (root, *(root / name for name in PLACES)):
        if place.is_file():
            return ArchivedFolders(split, root=place, size=size)
        if (place / split).is_dir():
            made = ClassFolders(split, root=place, size=size)
            made.name = "tiny-imagenet"
            return made
    raise DataError(f"tiny-imagenet: {root} is neither a tar nor a folder with {split}/CLASS/IMAGE, nor holds one")
