"""The interface and registry of image-class sources: chunks of images that can be read one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hamburger.registry import Registry
from hamburger.training.image_files import Bytes


class ImageChunk(NamedTuple):
    """Consecutive images of a source.   `images`: m 3 size size, uint8, RGB.   `labels`: m, 0 ... k - 1"""

    images: Bytes
    labels: npt.NDArray[np.int64]


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
        """Return JSON values that change whenever an image would: files with sizes and times, or the options."""
        raise NotImplementedError

    def transform(self) -> str:
        """Describe how an image file becomes pixels."""
        raise NotImplementedError


# constructors take (split, size=..., root=..., **options); generated sources take no root
image_sources: Registry[ImageSource] = Registry("image set")


def describe_file(path: Path, root: Path) -> list[Any]:
    """Return relative path, size and modification time, for `origin`."""
    stat = path.stat()
    return [str(path.relative_to(root)), stat.st_size, stat.st_mtime_ns]
