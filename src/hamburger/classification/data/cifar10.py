"""`cifar10`: the Python batches of the official archive, or the same images as JPEG sheets.

Sheets have 50 x 50 tiles in raster order, `train_00.jpg` ... and `test_00.jpg` ..., with labels in `train_labels.npy`
and `test_labels.npy`. They are lossy, so distances such as FID must take their real images from them too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from hamburger.classification.data.base import ImageChunk, ImageSource, image_sources
from hamburger.classification.data.safe_pickle import read_batch
from hamburger.errors import DataError, OptionError, check_choice
from hamburger.training.image_files import read_image

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZE, TILES = 32, 50
BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
PLACES = ("", "cifar-10-batches-py", "cifar10")


@image_sources.register("cifar10")
class CIFAR10(ImageSource):
    """`root`: the folder of the batches or sheets, or its parent."""

    name = "cifar10"

    def __init__(self, split: str = "train", *, root: Path, size: int = SIZE) -> None:
        check_choice("cifar10", "split", split, BATCHES)
        if size != SIZE:
            raise OptionError(f"cifar10: images are {SIZE} x {SIZE} (got size={size}); --set model.resolution={SIZE}")
        self.split, self.size, self.classes = split, size, CLASSES
        self.root, self.files = _find_files(Path(root), split)
        self.sheets = self.files[0].suffix == ".jpg"
        self._labels = self._read_sheet_labels() if self.sheets else None

    def _read_sheet_labels(self) -> Any:
        path = self.root / f"{self.split}_labels.npy"
        try:
            with path.open("rb") as file:  # not np.load, which also opens archives and pickles
                labels = np.lib.format.read_array(file, allow_pickle=False)
        except OSError as closed:
            raise DataError(f"{path}: cannot be read ({closed.strerror or closed})") from None
        except Exception as broken:  # a damaged header can make numpy raise anything
            raise DataError(f"{path}: not an array of labels ({broken}); write it with numpy.save") from None
        most = len(self.files) * TILES**2
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) > most:
            raise DataError(
                f"{path}: needs one integer for each of at most {most} tiles (got {labels.dtype} {labels.shape}); is a "
                f"sheet missing?"
            )
        least = most - TILES**2 + 1  # only the last sheet may have tiles without an image
        if len(labels) < least:
            raise DataError(
                f"{path}: {len(self.files)} sheets of {TILES**2} tiles need at least {least} labels (got "
                f"{len(labels)}: {least - len(labels)} are missing); copy it again"
            )
        _check_range(path, int(labels.min()), int(labels.max()))
        return labels.astype(np.int64)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> ImageChunk:
        return self._read_sheet(index) if self.sheets else self._read_batch(index)

    def _read_sheet(self, index: int) -> ImageChunk:
        path = self.files[index]
        sheet = read_image(path).numpy()
        if sheet.shape != (3, TILES * SIZE, TILES * SIZE):
            raise DataError(f"{path}: a sheet must be {TILES * SIZE} x {TILES * SIZE} pixels (got {sheet.shape[1:]})")
        tiles = sheet.reshape(3, TILES, SIZE, TILES, SIZE).transpose(1, 3, 0, 2, 4).reshape(-1, 3, SIZE, SIZE)
        assert self._labels is not None
        labels = self._labels[index * TILES**2 : (index + 1) * TILES**2]
        return ImageChunk(tiles[: len(labels)], labels)

    def _read_batch(self, index: int) -> ImageChunk:
        path = self.files[index]
        batch = read_batch(path)
        data, labels = batch.get("data"), batch.get("labels")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * SIZE**2:
            raise DataError(f"{path}: not a CIFAR batch (its data are not n x {3 * SIZE**2} bytes)")
        if not isinstance(labels, list) or len(labels) != len(data) or not all(isinstance(one, int) for one in labels):
            raise DataError(f"{path}: not a CIFAR-10 batch (it needs a label for each of its {len(data)} images)")
        if labels:
            _check_range(path, min(labels), max(labels))
        return ImageChunk(data.reshape(-1, 3, SIZE, SIZE), np.array(labels, np.int64))

    def origin(self) -> Any:
        labels = [self.root / f"{self.split}_labels.npy"] if self.sheets else []
        # by content: all batches have the same size, and copies have arbitrary times
        return [[path.name, _digest(path)] for path in [*self.files, *labels]]

    def transform(self) -> str:
        return "tiles of sheets" if self.sheets else "as stored"


def _check_range(path: Path, lowest: int, highest: int) -> None:
    if lowest < 0 or highest >= len(CLASSES):
        raise DataError(f"{path}: labels must be in 0 ... {len(CLASSES) - 1} (got {lowest} ... {highest})")


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as closed:
        raise DataError(f"{path}: cannot be read ({closed.strerror or closed})") from None


def _find_files(root: Path, split: str) -> tuple[Path, list[Path]]:
    """Return the folder and its files: all batches, or sheets numbered from 0 without a gap."""
    missing: list[Path] = []
    for folder in (root / place for place in PLACES):
        batches = [folder / name for name in BATCHES[split]]
        existing = [path for path in batches if path.is_file()]
        if len(existing) == len(batches):
            return folder, batches
        if existing:
            missing += [path for path in batches if path not in existing]
        sheets = sorted(folder.glob(f"{split}_[0-9][0-9].jpg"))
        if sheets:
            expected = [folder / f"{split}_{i:02d}.jpg" for i in range(len(sheets))]
            if sheets == expected:
                return folder, sheets
            missing += [path for path in expected if path not in sheets]
    if missing:
        raise DataError(f"cifar10: missing: {', '.join(map(str, missing))}", [f"{path}: missing" for path in missing])
    raise DataError(
        f"cifar10: {root} contains neither {BATCHES[split][0]} (cifar-10-batches-py, unpacked) nor "
        f"{split}_00.jpg (sheets)"
    )
