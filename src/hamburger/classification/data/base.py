"""Where images come from: pieces that can be read one by one, and all that decides what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hamburger.registry import Registry
from hamburger.training.image_files import Bytes


class ImageChunk(NamedTuple):
    """Some images, in their order.   `images`: m 3 size size, uint8, RGB.   `labels`: m, 0 ... k - 1"""

    images: Bytes
    labels: npt.NDArray[np.int64]


class ImageSource:
    """One split of one set at one size. Piece i is the same bits each time, whoever reads it, from whatever thread."""

    name: str
    split: str
    size: int
    classes: tuple[str, ...]
    embedded = False  # generated from numbers: nothing to keep on a disk

    def __len__(self) -> int:
        """How many pieces."""
        raise NotImplementedError

    def read(self, index: int) -> ImageChunk:
        """A DataError that names the file where it cannot be read."""
        raise NotImplementedError

    def origin(self) -> Any:
        """Plain values that change whenever any image would: files with their sizes and times, or the options."""
        raise NotImplementedError

    def transform(self) -> str:
        """What is done to an image between its file and its pixels, in words."""
        raise NotImplementedError


# constructors take (split, size=..., root=..., **options); embedded sets take no root
image_sources: Registry[ImageSource] = Registry("image set")


def describe_file(path: Path, root: Path) -> list[Any]:
    stat = path.stat()
    return [str(path.relative_to(root)), stat.st_size, stat.st_mtime_ns]
