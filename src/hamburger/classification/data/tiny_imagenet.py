"""`tiny-imagenet`: classes of Tiny-ImageNet at 64 pixels, from the unpacked folder or directly from a tar."""

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
USUAL_NAMES = ("tiny_imagenet10.tar", "tiny-imagenet-200.tar", "tiny_imagenet10", "tiny-imagenet-200")
FOLDER, TEXT = "images", "val_annotations.txt"
SHOWN = 5


def _unlabelled_error(root: Path, split: str) -> DataError:
    return DataError(
        f"{NAME}: the images of '{split}' in {root} have no classes, since there is no {split}/{TEXT}; the official "
        f"'test' is published without one, use 'val': --split val, or data.split=val"
    )


class AnnotatedImages(ClassFolders):
    """`root/SPLIT/images` with a text file of the classes, as the official 'val' is unpacked."""

    name = NAME

    def __init__(self, split: str, *, root: Path, size: int) -> None:
        check_count(self.name, "size", size, least=4)
        self.split, self.size, self.root = split, size, root
        images, text = _list_images(root / split / FOLDER), root / split / TEXT
        if not text.is_file():
            raise _unlabelled_error(root, split)
        annotations = read_annotations(text, text.read_bytes(), [path.name for path in images])
        trained = root / "train"
        folders = sorted(entry.name for entry in trained.iterdir() if entry.is_dir()) if trained.is_dir() else []
        self.classes = order_classes(text, annotations, [name for name in folders if not name.startswith(".")])
        # sorted by class, as from a tar or from folders
        self.files = sorted(((p, self.classes.index(annotations[p.name])) for p in images), key=lambda entry: entry[1])


class TinyFolders(ClassFolders):
    name = NAME


def _list_images(folder: Path) -> list[Path]:
    """Return the images directly in the folder."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


class TarFolders(ImageSource):
    """Class directories inside an uncompressed tar, `.../SPLIT/CLASS/...`, read in place.

    'val' may also be as published, with a text file of the classes.
    """

    name = NAME

    def __init__(self, split: str, *, root: Path, size: int) -> None:
        check_count(self.name, "size", size, least=4)
        self.split, self.size, self.root = split, size, root
        members = _list_members(root)
        entries = _list_images_of_split(members, split)
        if not entries:
            raise DataError(f"{root}: contains no {split}/CLASS/IMAGE; pass a tar of class directories")
        if {entry[0] for entry in entries} == {FOLDER}:
            text = next((member for member in members if PurePosixPath(member[0]).parts[-2:] == (split, TEXT)), None)
            if text is None:
                raise _unlabelled_error(root, split)
            names = [PurePosixPath(entry[1]).name for entry in entries]
            annotations = read_annotations(root / text[0], self._read_bytes(*text[1:]), names)
            entries = [(annotations[name], *entry[1:]) for name, entry in zip(names, entries, strict=True)]
            trained = sorted({entry[0] for entry in _list_images_of_split(members, "train")})
            self.classes = order_classes(root / text[0], annotations, trained)
        else:
            self.classes = tuple(sorted({entry[0] for entry in entries}))
        self.files = sorted(entries)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> ImageChunk:
        class_name, name, offset, length = self.files[index]
        image = read_square(self.root / name, self.size, self._read_bytes(offset, length))
        return ImageChunk(image[None], np.array([self.classes.index(class_name)], np.int64))

    def _read_bytes(self, offset: int, length: int) -> bytes:
        with self.root.open("rb") as file:  # one handle per call: threads must not share a file position
            file.seek(offset)
            return file.read(length)

    def origin(self) -> Any:
        stat = self.root.stat()
        return [self.root.name, stat.st_size, stat.st_mtime_ns, [list(entry) for entry in self.files]]

    def transform(self) -> str:
        return f"{SQUARE} to {self.size}"


def _list_members(root: Path) -> list[tuple[str, int, int]]:
    """Return name, offset and length of every file in a tar; raise if the tar is truncated."""
    members: list[tuple[str, int, int]] = []
    begun = False
    try:
        with tarfile.open(root, "r:") as archive:
            for member in archive:
                begun = True
                if member.isreg():
                    members.append((member.name, member.offset_data, member.size))
            end = archive.offset  # where the next header would be
        with root.open("rb") as file:
            file.seek(end)
            mark = file.read(tarfile.BLOCKSIZE)
    except (tarfile.TarError, OSError, EOFError) as broken:
        if begun and not isinstance(broken, OSError):
            raise _truncated_error(root, members) from None
        raise DataError(f"{root}: not a readable tar ({broken}); decompress a compressed one first") from None
    # tarfile treats the end of the file, and any unreadable header, as the end of the archive; the real end is marked
    # by blocks of zeros
    if len(mark) < tarfile.BLOCKSIZE:
        raise _truncated_error(root, members)
    if any(mark):
        raise DataError(f"{root}: is damaged after {_count_images(members)} images; copy it again")
    return members


def _truncated_error(root: Path, members: list[tuple[str, int, int]]) -> DataError:
    length = root.stat().st_size
    complete = [member for member in members if member[1] + member[2] <= length]
    return DataError(f"{root}: is truncated after {_count_images(complete)} images; copy it again")


def _count_images(members: list[tuple[str, int, int]]) -> int:
    return sum(PurePosixPath(name).suffix.lower() in SUFFIXES for name, _, _ in members)


def _list_images_of_split(members: list[tuple[str, int, int]], split: str) -> list[tuple[str, str, int, int]]:
    """Return class directory, name, offset and length of the images of a split."""
    entries = []
    for name, offset, length in members:
        parts = PurePosixPath(name).parts
        hidden = parts[-1].startswith(".")  # such as the metadata files of other systems' archivers
        if split in parts[:-2] and not hidden and PurePosixPath(name).suffix.lower() in SUFFIXES:
            entries.append((parts[parts.index(split) + 1], name, offset, length))
    return entries


@image_sources.register(NAME)
def tiny_imagenet(split: str = "train", *, root: Path, size: int = SIZE) -> ImageSource:
    """Return a split of Tiny-ImageNet.

    `root` is the tar, the folder with train/, or a folder that contains either. 'val' may be in class directories, or
    as published: `val/images` and `val/val_annotations.txt`.
    """
    root = Path(root)
    for candidate in (root, *(root / name for name in USUAL_NAMES)):
        if candidate.is_file():
            return TarFolders(split, root=candidate, size=size)
        if (candidate / split).is_dir():
            folders = [e.name for e in (candidate / split).iterdir() if e.is_dir() and not e.name.startswith(".")]
            source = AnnotatedImages if folders == [FOLDER] else TinyFolders
            return source(split, root=candidate, size=size)
    raise DataError(f"{NAME}: {root} is neither a tar nor a folder with {split}/CLASS/IMAGE, and contains neither")


# -- the official validation split -------------------------------------------------------------------------------------
#
# One folder of images, and a text file with the class of each:
#
#     val/images/val_0.JPEG ...      val/val_annotations.txt: val_0.JPEG, n03444034, 0, 32, 44, 62, tab-separated
#
# The four numbers are a box, which is not used here.


def read_annotations(path: Path | str, content: bytes, images: Collection[str]) -> dict[str, str]:
    """Return the class of every image by its name; raise a DataError that lists the problems of the file."""
    problems: list[str] = []
    annotations: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) < 2:
            problems.append(f"line {number} has no class: {line.strip()!r}")
        elif annotations.setdefault(words[0], words[1]) != words[1]:
            problems.append(
                f"line {number} gives {words[0]} the class {words[1]}, another line {annotations[words[0]]}"
            )
    problems += [f"{name} has no line" for name in sorted(set(images) - annotations.keys())]
    problems += [f"{name} has a line but no file" for name in sorted(annotations.keys() - set(images))]
    if problems:
        more = f"; ... {len(problems)} in all" if len(problems) > SHOWN else ""
        raise DataError(
            f"{path}: {'; '.join(problems[:SHOWN])}{more}; expected one line per image in {FOLDER}: "
            f"its name, a tab and its class; unpack the archive again",
            problems,
        )
    return annotations


def order_classes(path: Path | str, annotated: dict[str, str], trained: Sequence[str]) -> tuple[str, ...]:
    """Return the classes in the order of the training folders, so that numbers agree between splits, else sorted."""
    names = sorted(set(annotated.values()))
    unknown = [name for name in names if name not in trained] if trained else []
    if unknown:
        raise DataError(
            f"{path}: {len(unknown)} of its {len(names)} classes have no folder in train "
            f"({', '.join(unknown[:SHOWN])}); use both from one download"
        )
    return tuple(trained) or tuple(names)
