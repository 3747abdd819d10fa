"""`tiny-imagenet`: classes of Tiny-ImageNet at 64 pixels, from the unpacked folder or straight from a tar."""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hamburger.classification.data.base import ImageChunk, ImageSource, image_sources
from hamburger.classification.data.folder import SQUARE, ClassFolders
from hamburger.errors import DataError, check_count
from hamburger.training.image_files import SUFFIXES, read_square

NAME, SIZE = "tiny-imagenet", 64
PLACES = ("tiny_imagenet10.tar", "tiny-imagenet-200.tar", "tiny_imagenet10", "tiny-imagenet-200")


def _unlabelled(root: Path, split: str) -> DataError:
    return DataError(
        f"{NAME}: {root} has images of the split '{split}' in one folder and no {split}/{TEXT}, so that nobody knows "
        f"their classes; the official 'test' is published without, 'val' has them: --split val, or data.split=val"
    )


class AnnotatedImages(ClassFolders):
    """`root/SPLIT/images` with the text that names the classes, as the official 'val' is unpacked."""

    name = NAME

    def __init__(self, split: str, *, root: Path, size: int) -> None:
        check_count(self.name, "size", size, least=4)
        self.split, self.size, self.root = split, size, root
        images, text = _images(root / split / FOLDER), root / split / TEXT
        if not text.is_file():
            raise _unlabelled(root, split)
        found = read_annotations(text, text.read_bytes(), [path.name for path in images])
        trained = root / "train"
        folders = sorted(entry.name for entry in trained.iterdir() if entry.is_dir()) if trained.is_dir() else []
        self.classes = order_classes(text, found, [name for name in folders if not name.startswith(".")])
        # class by class, as from a tar or from folders
        self.files = sorted(((p, self.classes.index(found[p.name])) for p in images), key=lambda entry: entry[1])


class TinyFolders(ClassFolders):
    name = NAME


def _images(folder: Path) -> list[Path]:
    """Those that lie in the folder itself."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


class TarFolders(ImageSource):
    """Class directories inside an uncompressed tar: `.../SPLIT/CLASS/...`, read where they lie; or 'val' as it is
    published, with the text that names the classes.
    """

    name = NAME

    def __init__(self, split: str, *, root: Path, size: int) -> None:
        check_count(self.name, "size", size, least=4)
        self.split, self.size, self.root = split, size, root
        members = _members(root)
        found = _entries(members, split)
        if not found:
            raise DataError(f"{root}: there is no {split}/CLASS/IMAGE in it; name a tar of class directories")
        if {entry[0] for entry in found} == {FOLDER}:
            text = next((member for member in members if PurePosixPath(member[0]).parts[-2:] == (split, TEXT)), None)
            if text is None:
                raise _unlabelled(root, split)
            named = read_annotations(
                root / text[0], self._content(*text[1:]), [PurePosixPath(e[1]).name for e in found]
            )
            found = [(named[PurePosixPath(entry[1]).name], *entry[1:]) for entry in found]
            trained = sorted({entry[0] for entry in _entries(members, "train")})
            self.classes = order_classes(root / text[0], named, trained)
        else:
            self.classes = tuple(sorted({entry[0] for entry in found}))
        self.files = sorted(found)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> ImageChunk:
        kind, name, offset, length = self.files[index]
        image = read_square(self.root / name, self.size, self._content(offset, length))
        return ImageChunk(image[None], np.array([self.classes.index(kind)], np.int64))

    def _content(self, offset: int, length: int) -> bytes:
        with self.root.open("rb") as file:  # one handle each: threads do not share a place in the file
            file.seek(offset)
            return file.read(length)

    def origin(self) -> Any:
        stat = self.root.stat()
        return [self.root.name, stat.st_size, stat.st_mtime_ns, [list(entry) for entry in self.files]]

    def transform(self) -> str:
        return f"{SQUARE} to {self.size}"


def _members(root: Path) -> list[tuple[str, int, int]]:
    """Name, place and length of every file in a tar that is there to its end."""
    found: list[tuple[str, int, int]] = []
    begun = False
    try:
        with tarfile.open(root, "r:") as archive:
            for member in archive:
                begun = True
                if member.isreg():
                    found.append((member.name, member.offset_data, member.size))
            end = archive.offset  # of the header that would come next
        with root.open("rb") as file:
            file.seek(end)
            mark = file.read(tarfile.BLOCKSIZE)
    except (tarfile.TarError, OSError, EOFError) as broken:
        if begun and not isinstance(broken, OSError):
            raise _cut(root, found) from None
        raise DataError(f"{root}: no readable tar ({broken}); one that is compressed must be unpacked first") from None
    # tarfile takes the end of the file, and any header that it cannot read, for the end of the archive; every writer of
    # tars marks that with blocks of zeros
    if len(mark) < tarfile.BLOCKSIZE:
        raise _cut(root, found)
    if any(mark):
        raise DataError(f"{root}: is damaged after {_images_in(found)} images; copy it again")
    return found


def _cut(root: Path, members: list[tuple[str, int, int]]) -> DataError:
    length = root.stat().st_size
    whole = [member for member in members if member[1] + member[2] <= length]
    return DataError(f"{root}: ends in the middle, after {_images_in(whole)} images; copy it again")


def _images_in(members: list[tuple[str, int, int]]) -> int:
    return sum(PurePosixPath(name).suffix.lower() in SUFFIXES for name, _, _ in members)


def _entries(members: list[tuple[str, int, int]], split: str) -> list[tuple[str, str, int, int]]:
    """The images of a split: class directory, name, place and length."""
    found = []
    for name, offset, length in members:
        parts = PurePosixPath(name).parts
        hidden = parts[-1].startswith(".")  # such as what other systems' archivers put beside each file
        if split in parts[:-2] and not hidden and PurePosixPath(name).suffix.lower() in SUFFIXES:
            found.append((parts[parts.index(split) + 1], name, offset, length))
    return found


@image_sources.register(NAME)
def tiny_imagenet(split: str = "train", *, root: Path, size: int = SIZE) -> ImageSource:
    """`root` is the tar, the folder that holds train/, or a folder with either of them. 'val' may lie in class
    directories, or as it is published: `val/images` and `val/val_annotations.txt`.
    """
    root = Path(root)
    for place in (root, *(root / name for name in PLACES)):
        if place.is_file():
            return TarFolders(split, root=place, size=size)
        if (place / split).is_dir():
            inside = [e.name for e in (place / split).iterdir() if e.is_dir() and not e.name.startswith(".")]
            kind = AnnotatedImages if inside == [FOLDER] else TinyFolders
            return kind(split, root=place, size=size)
    raise DataError(f"{NAME}: {root} is neither a tar nor a folder with {split}/CLASS/IMAGE, nor holds one")


# ----------------------------------------------------------------------------------------------------------------------
# Tiny-ImageNet's official validation split: one folder of images, and a text that says which class each has.
#
#     val/images/val_0.JPEG ...      val/val_annotations.txt: val_0.JPEG, n03444034, 0, 32, 44, 62 with tabs between,
# ...
#
# The four numbers are a box, which nobody needs here.


FOLDER, TEXT = "images", "val_annotations.txt"
SHOWN = 5


def read_annotations(path: Path | str, content: bytes, images: Collection[str]) -> dict[str, str]:
    """The class of every image by its name; a DataError that lists what is wrong with the text."""
    problems: list[str] = []
    found: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) < 2:
            problems.append(f"line {number} has no class: {line.strip()!r}")
        elif found.setdefault(words[0], words[1]) != words[1]:
            problems.append(f"line {number} gives {words[0]} the class {words[1]}, another line {found[words[0]]}")
    problems += [f"{name} has no line" for name in sorted(set(images) - found.keys())]
    problems += [f"{name} has a line and no file" for name in sorted(found.keys() - set(images))]
    if problems:
        more = f"; ... {len(problems)} in all" if len(problems) > SHOWN else ""
        raise DataError(
            f"{path}: {'; '.join(problems[:SHOWN])}{more}; a line is an image, a tab and its class, for each image in "
            f"{FOLDER} beside it: unpack the archive again",
            problems,
        )
    return found


def order_classes(path: Path | str, annotated: dict[str, str], trained: Sequence[str]) -> tuple[str, ...]:
    """Those of the training folders where they are there, so that a number means the same class in both splits."""
    own = sorted(set(annotated.values()))
    foreign = [name for name in own if name not in trained] if trained else []
    if foreign:
        raise DataError(
            f"{path}: {len(foreign)} of its {len(own)} classes have no folder in train ({', '.join(foreign[:SHOWN])}); "
            f"both must be of one download"
        )
    return tuple(trained) or tuple(own)
