"""A memory-mapped file of images of one size, written atomically with a checksum.

    n images of 3 size size bytes | n labels, int32 | a JSON description | its length, 8 bytes | 8 bytes of magic

The description contains a key of what was packed and how, so that a file of anything else is never used instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hamburger.classification.data.base import ImageChunk
from hamburger.errors import DataError
from hamburger.files import sync_folder
from hamburger.training.image_files import Bytes

MAGIC = b"HAMPACK1"
TAIL = 8 + len(MAGIC)
BLOCK = 2**24
LABEL = np.dtype("<i4")


class PackedFileError(DataError):
    """A packed file is damaged or contains something else; it can be rebuilt."""


class PackedFile(NamedTuple):
    """`images`: n 3 size size, uint8, memory-mapped.   `labels`: n.   `digest`: SHA-256 of both"""

    images: Bytes
    labels: npt.NDArray[np.int64]
    digest: str


def write_packed(path: Path, key: dict[str, Any], size: int, pieces: Iterable[ImageChunk]) -> None:
    """Write a temporary file, flush it to disk, rename it: a kill at any moment leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # a unique name, even among machines that share the folder
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    partial = Path(name)
    digest, labels, count = hashlib.sha256(), [], 0
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                content = np.ascontiguousarray(piece.images).tobytes()
                file.write(content)
                digest.update(content)
                labels.append(piece.labels)
                count += len(piece.labels)
            content = np.concatenate(labels).astype(LABEL).tobytes() if labels else b""
            file.write(content)
            digest.update(content)
            description = {"key": key, "count": count, "size": size, "sha256": digest.hexdigest()}
            text = json.dumps(description).encode()
            file.write(text + len(text).to_bytes(8, "little") + MAGIC)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o644)  # mkstemp's mode excludes other users
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_packed(
    path: Path, key: dict[str, Any], *, verify: bool = True, after: Callable[[int], object] = lambda read: None
) -> PackedFile:
    """Return the images, or raise PackedFileError with the reason. `verify` reads everything and compares checksums."""
    description = _read_description(path)
    if description["key"] != key:
        raise PackedFileError(f"{path} holds other images, or was prepared differently")
    count, size = int(description["count"]), int(description["size"])
    pixels = count * 3 * size * size
    if path.stat().st_size != pixels + LABEL.itemsize * count + description["tail"]:
        raise PackedFileError(f"{path} has the wrong length")
    if verify and _digest(path, pixels + LABEL.itemsize * count, after) != description["sha256"]:
        raise PackedFileError(f"{path} has the wrong checksum")
    images = np.memmap(path, np.uint8, "r", 0, (count, 3, size, size))
    labels = np.fromfile(path, LABEL, count, offset=pixels).astype(np.int64)
    return PackedFile(images, labels, str(description["sha256"]))


def _read_description(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - TAIL))
            tail = file.read()
            stated = int.from_bytes(tail[:8], "little")
            if len(tail) != TAIL or tail[8:] != MAGIC or stated > length - TAIL:
                raise PackedFileError(f"{path} is truncated, or not a packed file")
            file.seek(length - TAIL - stated)
            description = json.loads(file.read(stated))
        if not {"key", "count", "size", "sha256"} <= description.keys():
            raise PackedFileError(f"{path} has no valid description")
        return {**description, "tail": stated + TAIL}
    except (ValueError, AttributeError) as broken:
        if isinstance(broken, PackedFileError):
            raise
        raise PackedFileError(f"{path} has no valid description ({broken})") from None


def _digest(path: Path, length: int, after: Callable[[int], object]) -> str:
    digest, left = hashlib.sha256(), length
    with path.open("rb") as file:
        while left and (block := file.read(min(BLOCK, left))):
            digest.update(block)
            left -= len(block)
            after(len(block))
    return digest.hexdigest()
