"""Which images the user means by files and folders, and how they are read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from hamburger.errors import DataError, InputError
from hamburger.training import image_files


@dataclass(frozen=True)
class InputImage:
    path: Path
    name: str  # of its output, without a suffix; folders below the named one are kept, as in `trip/0001`
    partner: Path | None = None  # the right one of a pair, whose left one is `path`

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.path,) if self.partner is None else (self.path, self.partner)


@dataclass(frozen=True)
class Found:
    photos: tuple[InputImage, ...]
    failed: tuple[tuple[Path, str], ...]  # paths that lead to no image, and why
    left_out: tuple[Path, ...]  # files in folders that are no images by their name
    repeated: tuple[Path, ...]  # named more than once


def find_images(paths: Sequence[Path], *, recursive: bool = False, outside: Path | None = None) -> Found:
    """Files as they are named, folders sorted. What lies in the folder `outside` (our own output) is not looked at.

    `a.jpg` and `a.png`, or `x/a.jpg` and `y/a.jpg`, get different names: none overwrites the output of the other.
    """
    photos: list[InputImage] = []
    failed: list[tuple[Path, str]] = []
    left_out: list[Path] = []
    repeated: list[Path] = []
    seen: set[Path] = set()
    taken: set[str] = set()
    for given in paths:
        if not given.is_dir():
            candidates = [(given, given.stem)]  # also what is not there: reading it says so
        else:
            files = list(_files(given, recursive, outside))
            dangling = [path for path, _ in files if not path.exists() and path.suffix.lower() in SUFFIXES]
            failed += [(path, f"{path}: a link to {path.readlink()}, which is not there") for path in dangling]
            files = [(path, name) for path, name in files if path.exists()]
            candidates = [(path, name) for path, name in files if path.suffix.lower() in SUFFIXES]
            left_out += [path for path, _ in files if path.suffix.lower() not in SUFFIXES]
            if not (candidates or dangling):
                failed.append((given, _empty(given, recursive)))
        for path, name in candidates:
            if path.resolve() in seen:
                repeated.append(path)
                continue
            seen.add(path.resolve())
            photos.append(InputImage(path, _free(name, path.suffix, taken)))
    return Found(tuple(photos), tuple(failed), tuple(left_out), tuple(repeated))


def _files(folder: Path, recursive: bool, outside: Path | None) -> Iterator[tuple[Path, str]]:
    """Files and their names below the folder, without hidden ones: systems scatter `._a.jpg` and the like.

    A link that leads nowhere is among them: it stands for an image that somebody expects.
    """
    for path in sorted(folder.rglob("*") if recursive else folder.iterdir()):
        inner = path.relative_to(folder)
        ours = outside is not None and path.resolve().is_relative_to(outside.resolve())
        dangling = path.is_symlink() and not path.exists()
        if (path.is_file() or dangling) and not ours and not any(part.startswith(".") for part in inner.parts):
            yield path, inner.with_suffix("").as_posix()


def _empty(folder: Path, recursive: bool) -> str:
    kinds = ", ".join(SUFFIXES)
    if not recursive and any(path.is_dir() for path in folder.iterdir()):
        return f"{folder}: no image ({kinds}) lies in this folder; look into its folders with --recursive"
    return f"{folder}: no image ({kinds}) lies in this folder"


def _free(name: str, suffix: str, taken: set[str]) -> str:
    """`a`, else `a-png`, else `a-png-2`, ...; some file systems take `A` and `a` for one."""
    stem = f"{name}-{suffix.lower().lstrip('.')}" if name.casefold() in taken else name
    free, count = stem, 1
    while free.casefold() in taken:
        count += 1
        free = f"{stem}-{count}"
    taken.add(free.casefold())
    return free


# ----------------------------------------------------------------------------------------------------------------------
# Photographs as a network wants them, read exactly as those it was trained on.


SUFFIXES = image_files.SUFFIXES
Read = TypeVar("Read")


def read_square(path: Path, size: int) -> Tensor:
    """The largest square in the middle of such a file, in that size.   ->   3 size size uint8"""
    return torch.from_numpy(_read(lambda: image_files.read_square(path, size)))


def read_image(path: Path) -> Tensor:
    """One JPEG, PNG or WebP file as 3 h w uint8 RGB; what cannot be read raises with its path.

    The EXIF rotation is applied. Grey becomes three equal channels, 16 bits become 8, a palette or CMYK becomes RGB,
    transparent pixels lie over white, and of an animation the first frame counts.
    """
    return _read(lambda: image_files.read_image(path))


def _read(read: Callable[[], Read]) -> Read:
    try:
        with warnings.catch_warnings():  # of odd metadata, and of large pictures; beyond its hard limit Pillow raises
            warnings.simplefilter("ignore")
            return read()
    except DataError as bad:
        raise InputError(str(bad)) from None
