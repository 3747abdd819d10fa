"""`cifar10`: the binary version of the official archive, which holds no pickles."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from hamburger.classification.data.base import ImageChunk, ImageSource, image_sources
from hamburger.errors import DataError, OptionError, check_choice
from hamburger.training.safe_files import MAX_FILE_BYTES, read_bytes

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZE = 32
RECORD = 1 + 3 * SIZE**2  # bytes of an image: its label, then red, green and blue
BATCHES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
FOLDER, ARCHIVE = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"


@image_sources.register("cifar10")
class CIFAR10(ImageSource):
    """`root`: the folder of the batches, or its parent."""

    name = "cifar10"

    def __init__(self, split: str = "train", *, root: Path, size: int = SIZE) -> None:
        check_choice("cifar10", "split", split, BATCHES)
        if size != SIZE:
            raise OptionError(f"cifar10: images are {SIZE} x {SIZE} (got size={size}); --set model.resolution={SIZE}")
        self.split, self.size, self.classes = split, size, CLASSES
        self.files = _find_batches(Path(root), split)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> ImageChunk:
        return read_batch(self.files[index])

    def origin(self) -> Any:
        # by content: all batches have the same size, and copies have arbitrary times
        return [[path.name, hashlib.sha256(read_bytes(path, MAX_FILE_BYTES)).hexdigest()] for path in self.files]


def _find_batches(root: Path, split: str) -> list[Path]:
    """Return all batches of a split."""
    for folder in (root, root / FOLDER):
        batches = [folder / name for name in BATCHES[split]]
        missing = [path for path in batches if not path.is_file()]
        if not missing:
            return batches
        if len(missing) < len(batches):
            problems = [f"{path}: missing" for path in missing]
            raise DataError(f"cifar10: missing: {', '.join(map(str, missing))}; unpack {ARCHIVE} again", problems)
    raise DataError(
        f"cifar10: {root} does not contain {BATCHES[split][0]}; give the unpacked {ARCHIVE}, the binary version of the "
        f"data set (the Python version is not read, since it is pickled)"
    )


def read_batch(path: Path) -> ImageChunk:
    """Return the images of a batch file."""
    content = read_bytes(path, MAX_FILE_BYTES)
    if len(content) % RECORD:
        raise DataError(f"{path}: not a CIFAR-10 batch ({len(content)} bytes are not n x {RECORD}); copy it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int64)
    if (labels >= len(CLASSES)).any():
        raise DataError(f"{path}: labels must be in 0 ... {len(CLASSES) - 1} (got {labels.max()}); copy it again")
    return ImageChunk(records[:, 1:].reshape(-1, 3, SIZE, SIZE), labels)
