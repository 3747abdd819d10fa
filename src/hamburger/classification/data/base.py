"""Image-class sources, and loading all images of one: files are packed into one cache file, which is memory-mapped.

The name of a packed file contains a digest of what was packed and how. Its content:

    n images of 3 size size bytes | n labels, int32 | a JSON description, padded to 160 bytes
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hamburger.errors import DataError
from hamburger.files import encode_json, one_at_a_time, open_atomically
from hamburger.registry import Registry
from hamburger.training.datasets import create_from_registry, join_problems
from hamburger.training.image_files import Bytes
from hamburger.training.loader import prefetch

Labels = npt.NDArray[np.int64]


class ImageChunk(NamedTuple):
    """Consecutive images of a source.   `images`: m 3 size size, uint8, RGB.   `labels`: m, 0 ... k - 1"""

    images: Bytes
    labels: Labels


class ImageSource:
    """One split of a data set at one image size. Chunk i always has the same bits, read from any thread."""

    name: str
    split: str
    size: int
    classes: tuple[str, ...]
    embedded = False  # generated, so not cached on disk

    def __len__(self) -> int:
        """Return the number of chunks."""
        raise NotImplementedError

    def read(self, index: int) -> ImageChunk:
        """Return chunk `index`; raise a DataError that names the file if it cannot be read."""
        raise NotImplementedError

    def origin(self) -> Any:
        """Return JSON values that change whenever an image would, such as files with sizes and times."""
        raise NotImplementedError


# constructors take (split, size=..., root=..., **options); generated sources take no root
image_sources: Registry[ImageSource] = Registry("image set")


def open_source(name: str, split: str, root: str | Path | None = None, *, size: int, **options: Any) -> ImageSource:
    """Return a split of the named source. `root` is its folder; generated sources take none."""
    return create_from_registry(image_sources, name, split, root, size=size, **options)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """`images`: n 3 size size, uint8.   `labels`: n, 0 ... k - 1.   `digest`: SHA-256 of all pixels and labels"""

    name: str
    split: str
    classes: tuple[str, ...]
    images: Bytes
    labels: Labels
    digest: str

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def ids(self) -> Sequence[int]:
        """The numbers of the images: packed, they have no names."""
        return range(len(self))

    @property
    def size(self) -> int:
        return int(self.images.shape[2])


def find_cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "hamburger" / "images"


def load_images(
    source: ImageSource,
    *,
    cache: Path | None = None,
    verify: bool = True,
    note: Callable[[str], object] = lambda text: None,
) -> ImageSet:
    """Return all images of a source.

    Files are read once, in threads, and packed into one file under `cache`. If some cannot be read, one error lists
    them all and nothing is written. A damaged or stale packed file is rebuilt, with a `note`. `verify` compares the
    checksum of a packed file with its content.
    """
    if source.embedded:
        chunks = [source.read(index) for index in range(len(source))]
        pixels, labels = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
        digest = hashlib.sha256(pixels.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
        return ImageSet(source.name, source.split, source.classes, pixels, labels, digest)
    path = (cache or find_cache_folder()) / f"{source.name}-{source.split}-{build_key(source)}.images"
    packed = _read_cache(path, verify, note)
    if packed is None:
        try:
            # of several processes one packs; the others wait and read its file
            lock = path.with_name(f".{path.name}.lock")
            with one_at_a_time(lock, lambda: note(f"waiting: another process is packing {path}")):
                packed = _read_cache(path, verify)
                if packed is None:
                    write_packed(path, source.size, read_chunks(source))
                    packed = read_packed(path, verify=False)
        except OSError as closed:
            raise DataError(
                f"{path.parent}: packed images cannot be written ({closed.strerror or closed}); set XDG_CACHE_HOME=DIR "
                f"to use another folder"
            ) from closed
    images = ImageSet(source.name, source.split, source.classes, *packed)
    if not len(images):
        raise DataError(f"{source.name}: split '{source.split}' is empty")
    return images


def build_key(source: ImageSource) -> str:
    """Return a digest of everything that the pixels depend on: files by name, size and modification time."""
    origin = hashlib.sha256(json.dumps(source.origin(), sort_keys=True).encode()).hexdigest()
    fields = {field: getattr(source, field) for field in ("name", "split", "classes", "size")}
    key = json.dumps({"version": VERSION, "origin": origin, **fields}, sort_keys=True)
    return hashlib.sha256(key.encode()).hexdigest()[:20]


def read_chunks(source: ImageSource) -> Iterator[ImageChunk]:
    """Yield every chunk in order; if some cannot be read, try all and raise one error that lists them."""

    def read(index: int) -> ImageChunk | DataError:
        try:
            return source.read(index)
        except DataError as broken:
            return broken

    problems: list[str] = []
    threads = min(16, os.cpu_count() or 1)
    for chunk in prefetch(read, range(len(source)), workers=threads, depth=4 * threads):
        if isinstance(chunk, DataError):
            problems.append(str(chunk))
        elif not problems:
            yield chunk
    if problems:
        count = "1 file" if len(problems) == 1 else f"{len(problems)} files"
        heading = f"{source.name}, split '{source.split}': {count} cannot be used"
        raise DataError(join_problems(heading, problems), problems)


# -- packed files ------------------------------------------------------------------------------------------------------


VERSION = 2  # of the conversion from files to pixels; changing it invalidates every packed file
LABEL = np.dtype("<i4")
TRAILER = 160
PackedFile = tuple[Bytes, Labels, str]  # memory-mapped images n 3 size size, labels n, SHA-256 of both


def write_packed(path: Path, size: int, chunks: Iterable[ImageChunk]) -> None:
    """Write the chunks to a file, flushed to disk; a kill at any moment leaves the old file or the new one."""
    digest, labels = hashlib.sha256(), [np.empty(0, np.int64)]
    with open_atomically(path, durable=True) as file:
        for chunk in chunks:
            content = np.ascontiguousarray(chunk.images).tobytes()
            file.write(content)
            digest.update(content)
            labels.append(chunk.labels)
        content = np.concatenate(labels).astype(LABEL).tobytes()
        file.write(content)
        digest.update(content)
        description = {"count": len(content) // LABEL.itemsize, "size": size, "sha256": digest.hexdigest()}
        file.write(encode_json(description).encode().ljust(TRAILER))


def read_packed(path: Path, *, verify: bool = True) -> PackedFile:
    """Return the images; raise ValueError if the file is damaged. `verify` reads everything and compares checksums."""
    content = np.memmap(path, np.uint8, "r")
    description = json.loads(content[-TRAILER:].tobytes())
    count, size, digest = (description[name] for name in ("count", "size", "sha256"))
    pixels = count * 3 * size * size
    end = pixels + count * LABEL.itemsize
    if len(content) != end + TRAILER:
        raise ValueError("wrong length")
    if verify and hashlib.sha256(content[:end].data).hexdigest() != digest:
        raise ValueError("wrong checksum")
    labels = np.frombuffer(content[pixels:end].tobytes(), LABEL).astype(np.int64)
    return content[:pixels].reshape(count, 3, size, size), labels, digest


def _read_cache(path: Path, verify: bool, note: Callable[[str], object] = lambda text: None) -> PackedFile | None:
    """Return the packed file, None if it is missing or damaged; a `note` says why."""
    try:
        return read_packed(path, verify=verify)
    except (FileNotFoundError, NotADirectoryError):  # the second is reported when the file is written
        return None
    except (ValueError, KeyError, TypeError) as damage:
        note(f"{path} is damaged ({damage}): rebuilding it")
        return None
    except OSError as closed:  # a folder of that name, or a file of another user
        raise DataError(
            f"{path}: packed images cannot be read ({closed.strerror or closed}); remove it, or set XDG_CACHE_HOME=DIR "
            f"to use another folder"
        ) from closed
