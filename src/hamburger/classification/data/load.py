"""Load all images of a source: files are checked and packed into one cache file, which is then memory-mapped."""

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
from hamburger.errors import DataError
from hamburger.files import one_at_a_time
from hamburger.training.datasets import create_from_registry
from hamburger.training.image_files import Bytes
from hamburger.training.loader import prefetch

SHOWN = 20
VERSION = 1  # of the conversion from files to pixels; changing it invalidates every packed file


@dataclass(frozen=True, eq=False)
class ImageSet:
    """`images`: n 3 size size, uint8.   `labels`: n, 0 ... k - 1.   `digest`: SHA-256 of all pixels and labels"""

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
    """Return a split of the named source. `root` is its folder; generated sources take none."""
    return create_from_registry(image_sources, name, split, root, size=size, **options)


def load_images(
    source: ImageSource,
    *,
    cache: Path | None = None,
    verify: bool = True,
    note: Callable[[str], object] = lambda text: None,
    after: Callable[[], object] = lambda: None,
) -> ImageSet:
    """Return all images of a source.

    Files are read once, in threads, and packed into one file under `cache`. If some cannot be read, one error lists
    them all and nothing is written. A damaged or stale packed file is rebuilt, with a `note`.
    """
    if source.embedded:
        return _generate(source)
    key = build_key(source)
    path = (cache or find_cache_folder()) / f"{source.name}-{source.split}-{_digest_key(key)}.images"
    cached = _read_cache(source, path, key, verify)
    if cached is not None:
        return cached
    try:
        # of several processes one packs; the others wait and read its file
        with one_at_a_time(
            path.with_name(f".{path.name}.lock"), lambda: note(f"waiting: another process is packing {path}")
        ):
            cached = _read_cache(source, path, key, verify, note)
            if cached is not None:
                return cached
            write_packed(path, key, source.size, read_chunks(source, after))
    except OSError as closed:
        raise DataError(
            f"{path.parent}: packed images cannot be written ({closed.strerror or closed}); set XDG_CACHE_HOME=DIR to "
            f"use another folder"
        ) from closed
    return _as_set(source, read_packed(path, key, verify=False))  # just written, so the checksum is right


def _read_cache(
    source: ImageSource,
    path: Path,
    key: dict[str, Any],
    verify: bool,
    note: Callable[[str], object] = lambda text: None,
) -> ImageSet | None:
    """Return the images of the packed file, None if it is missing or unusable; a `note` says why."""
    if not path.exists():
        return None
    try:
        return _as_set(source, read_packed(path, key, verify=verify))
    except PackedFileError as damage:
        note(f"{damage}: rebuilding it")
        return None
    except OSError as closed:  # a folder of that name, or a file of another user
        raise DataError(
            f"{path}: packed images cannot be read ({closed.strerror or closed}); remove it, or set XDG_CACHE_HOME=DIR "
            f"to use another folder"
        ) from closed


def build_key(source: ImageSource) -> dict[str, Any]:
    """Return everything that the pixels depend on; files by a digest of names, sizes and modification times."""
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
    """Yield every chunk in order; if some cannot be read, try all and raise one error that lists them."""
    problems: list[str] = []
    for chunk in _try_chunks(source):
        after()
        if isinstance(chunk, str):
            problems.append(chunk)
        elif not problems:
            yield chunk
    if problems:
        count = "1 file" if len(problems) == 1 else f"{len(problems)} files"
        lines = [
            f"{source.name}, split '{source.split}': {count} cannot be used",
            *(f"  {p}" for p in problems[:SHOWN]),
        ]
        if len(problems) > SHOWN:
            lines.append(f"  ... and {len(problems) - SHOWN} more")
        raise DataError("\n".join(lines), problems)


def _try_chunks(source: ImageSource) -> Generator[ImageChunk | str]:
    def read(index: int) -> ImageChunk | str:
        try:
            return source.read(index)
        except DataError as broken:
            return str(broken)

    threads = min(16, os.cpu_count() or 1)
    yield from prefetch(read, range(len(source)), workers=threads, depth=4 * threads)


def _generate(source: ImageSource) -> ImageSet:
    chunks = [source.read(index) for index in range(len(source))]
    images, labels = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    digest = hashlib.sha256(images.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
    return ImageSet(source.name, source.split, source.classes, images, labels, digest)


def _as_set(source: ImageSource, packed: PackedFile) -> ImageSet:
    if not len(packed.labels):
        raise DataError(f"{source.name}: split '{source.split}' is empty")
    return ImageSet(source.name, source.split, source.classes, *packed)


def _digest_key(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
