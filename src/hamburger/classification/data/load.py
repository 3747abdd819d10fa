"""From a name and a folder to images that a training can index: checked, packed once, and mapped from then on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hamburger.classification.data.base import ImageChunk, ImageSource, image_sources
from hamburger.classification.data.packed_file import PackedFile, PackedFileError, read_packed, write_packed
from hamburger.errors import DataError, OptionError
from hamburger.files import one_at_a_time
from hamburger.registry import options_of
from hamburger.training.image_files import Bytes
from hamburger.training.loader import prefetch

SHOWN = 20
VERSION = 1  # of the way from a file to pixels; a change makes every packed file anew


@dataclass(frozen=True, eq=False)
class ImageSet:
    """`images`: n 3 size size, uint8.   `labels`: n, 0 ... k - 1.   `digest`: of every pixel and label"""

    name: str
    split: str
    classes: tuple[str, ...]
    images: Bytes
    labels: npt.NDArray[np.int64]
    digest: str

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> int:
        return int(self.images.shape[2])


def find_cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "hamburger" / "images"


def open_source(name: str, split: str, *, size: int, root: str | Path | None = None, **options: Any) -> ImageSource:
    """The named set's split. `root` is the folder of a set that lies in files; an embedded set takes none."""
    if "root" not in options_of(image_sources[name]):
        if root is not None:
            raise OptionError(
                f"image set '{name}' is generated and reads no folder, but was given {root}; leave it out"
            )
        return image_sources.create(name, split, size=size, **options)
    if root is None:
        raise OptionError(f"image set '{name}' needs its folder: root= in Python, --data DIR on the command line")
    return image_sources.create(name, split, size=size, root=Path(root), **options)


def load_images(
    source: ImageSource,
    *,
    cache: Path | None = None,
    verify: bool = True,
    note: Callable[[str], object] = lambda text: None,
    after: Callable[[], object] = lambda: None,
) -> ImageSet:
    """All images of a source. Files are read once, by threads, and packed into one under `cache`; what cannot be read
    is listed, all of it, before anything is kept. A packed file that is damaged or stale is made anew, with a `note`.
    """
    if source.embedded:
        return _made(source)
    key = build_key(source)
    path = (cache or find_cache_folder()) / f"{source.name}-{source.split}-{_short(key)}.images"
    kept = _kept(source, path, key, verify)
    if kept is not None:
        return kept
    try:
        # of processes that begin together one packs; those that waited find its file
        with one_at_a_time(
            path.with_name(f".{path.name}.lock"), lambda: note(f"another process packs {path}: waiting")
        ):
            kept = _kept(source, path, key, verify, note)
            if kept is not None:
                return kept
            write_packed(path, key, source.size, read_chunks(source, after))
    except OSError as closed:
        raise DataError(
            f"{path.parent}: images cannot be packed into it ({closed.strerror or closed}); XDG_CACHE_HOME=DIR names "
            f"another place"
        ) from closed
    return _as_set(source, read_packed(path, key, verify=False))  # its sum was taken from what has just been written


def _kept(
    source: ImageSource,
    path: Path,
    key: dict[str, Any],
    verify: bool,
    note: Callable[[str], object] = lambda text: None,
) -> ImageSet | None:
    """From the packed file; None where there is none that can be used, with a `note` why."""
    if not path.exists():
        return None
    try:
        return _as_set(source, read_packed(path, key, verify=verify))
    except PackedFileError as damage:
        note(f"{damage}: making it again")
        return None
    except OSError as closed:  # a folder of that name, or another person's file
        raise DataError(
            f"{path}: packed images cannot be read from it ({closed.strerror or closed}); remove it, or name another "
            f"place with XDG_CACHE_HOME=DIR"
        ) from closed


def build_key(source: ImageSource) -> dict[str, Any]:
    """All that the pixels depend on; files by a digest of their names, sizes and times of change."""
    origin = hashlib.sha256(json.dumps(source.origin(), sort_keys=True).encode()).hexdigest()
    return {
        "version": VERSION,
        "name": source.name,
        "split": source.split,
        "classes": list(source.classes),
        "size": source.size,
        "transform": source.transform(),
        "origin": origin,
    }


def read_chunks(source: ImageSource, after: Callable[[], object] = lambda: None) -> Iterator[ImageChunk]:
    """Every piece in order; where some cannot be read, all of them are tried, and one error lists those."""
    problems: list[str] = []
    for found in _tried(source):
        after()
        if isinstance(found, str):
            problems.append(found)
        elif not problems:
            yield found
    if problems:
        some = "1 file" if len(problems) == 1 else f"{len(problems)} files"
        lines = [f"{source.name}, split '{source.split}': {some} cannot be used", *(f"  {p}" for p in problems[:SHOWN])]
        if len(problems) > SHOWN:
            lines.append(f"  ... and {len(problems) - SHOWN} more")
        raise DataError("\n".join(lines), problems)


def _tried(source: ImageSource) -> Generator[ImageChunk | str]:
    def one(index: int) -> ImageChunk | str:
        try:
            return source.read(index)
        except DataError as broken:
            return str(broken)

    threads = min(16, os.cpu_count() or 1)
    yield from prefetch(one, range(len(source)), workers=threads, depth=4 * threads)


def _made(source: ImageSource) -> ImageSet:
    pieces = [source.read(index) for index in range(len(source))]
    images, labels = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    digest = hashlib.sha256(images.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
    return ImageSet(source.name, source.split, source.classes, images, labels, digest)


def _as_set(source: ImageSource, packed: PackedFile) -> ImageSet:
    if not len(packed.labels):
        raise DataError(f"{source.name}: split '{source.split}' is empty")
    return ImageSet(source.name, source.split, source.classes, *packed)


def _short(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
