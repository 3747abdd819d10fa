"""Find the images in files and folders that the user names, and read them."""

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
    """One image to predict, or a stereo pair."""

    path: Path
    name: str  # of its output, without suffix; keeps folders below the given one, as in `trip/0001`
    partner: Path | None = None  # the right image of a pair, whose left image is `path`

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.path,) if self.partner is None else (self.path, self.partner)


@dataclass(frozen=True)
class Found:
    """The images found, and the paths that gave none."""

    photos: tuple[InputImage, ...]
    failed: tuple[tuple[Path, str], ...]  # paths without an image, and why
    left_out: tuple[Path, ...]  # files in folders without an image suffix
    repeated: tuple[Path, ...]  # named more than once


def find_images(paths: Sequence[Path], *, recursive: bool = False, outside: Path | None = None) -> Found:
    """The images at `paths`: files in the given order, folders sorted; none below `outside`, the output folder.

    `a.jpg` and `a.png`, or `x/a.jpg` and `y/a.jpg`, get different names, so neither overwrites the other's output.
    """
    photos: list[InputImage] = []
    failed: list[tuple[Path, str]] = []
    left_out: list[Path] = []
    repeated: list[Path] = []
    seen: set[Path] = set()
    taken: set[str] = set()
    for given in paths:
        if not given.is_dir():
            candidates = [(given, given.stem)]  # also a missing file: reading it raises the error
        else:
            files = list(_files(given, recursive, outside))
            dangling = [path for path, _ in files if not path.exists() and path.suffix.lower() in SUFFIXES]
            failed += [(path, f"{path}: a link to {path.readlink()}, which does not exist") for path in dangling]
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
    """Yield files and their names below the folder, without hidden ones such as `._a.jpg`.

    Broken links are included, so that they are reported as missing images.
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
        return f"{folder}: no image ({kinds}) in this folder; search its subfolders with --recursive"
    return f"{folder}: no image ({kinds}) in this folder"


def _free(name: str, suffix: str, taken: set[str]) -> str:
    """A name that is not taken: `a`, else `a-png`, else `a-png-2`, ...; `A` counts as `a`, as on some file systems."""
    stem = f"{name}-{suffix.lower().lstrip('.')}" if name.casefold() in taken else name
    free, count = stem, 1
    while free.casefold() in taken:
        count += 1
        free = f"{stem}-{count}"
    taken.add(free.casefold())
    return free


# -- reading, exactly as training images are read ----------------------------------------------------------------------


SUFFIXES = image_files.SUFFIXES
Read = TypeVar("Read")


def read_square(path: Path, size: int) -> Tensor:
    """The largest centred square of an image file, resized.   ->   3 size size uint8"""
    return torch.from_numpy(_read(lambda: image_files.read_square(path, size)))


def read_image(path: Path) -> Tensor:
    """One JPEG, PNG or WebP file as 3 h w uint8 RGB; an unreadable file raises with its path.

    The EXIF rotation is applied. Grey becomes three equal channels, 16 bits become 8, a palette or CMYK becomes RGB,
    transparent pixels are put on white, and of an animation the first frame is taken.
    """
    return _read(lambda: image_files.read_image(path))


def _read(read: Callable[[], Read]) -> Read:
    try:
        with warnings.catch_warnings():  # about odd metadata and large images; beyond its hard limit Pillow raises
            warnings.simplefilter("ignore")
            return read()
    except DataError as bad:
        raise InputError(str(bad)) from None
