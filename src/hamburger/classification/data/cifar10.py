"""`cifar10`: the python batches of the official archive, or the same images as sheets of JPEG.

Sheets hold 50 x 50 tiles in raster order, `train_00.jpg` ... and `test_00.jpg` ..., labels in `train_labels.npy` and
`test_labels.npy`. They are lossy: distances must take their real images from them too.
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
    """`root` is either form's folder, or the folder above it."""

    name = "cifar10"

    def __init__(self, split: str = "train", *, root: Path, size: int = SIZE) -> None:
        check_choice("cifar10", "split", split, BATCHES)
        if size != SIZE:
            raise OptionError(f"cifar10: its images have {SIZE} pixels, not {size}; --set model.resolution={SIZE}")
        self.split, self.size, self.classes = split, size, CLASSES
        self.root, self.files = _find(Path(root), split)
        self.sheets = self.files[0].suffix == ".jpg"
        self._labels = self._sheet_labels() if self.sheets else None

    def _sheet_labels(self) -> Any:
        path = self.root / f"{self.split}_labels.npy"
        try:
            with path.open("rb") as file:  # by its form and not by np.load, which opens archives and pickles too
                labels = np.lib.format.read_array(file, allow_pickle=False)
        except OSError as closed:
            raise DataError(f"{path}: cannot be read ({closed.strerror or closed})") from None
        except Exception as broken:  # whatever a damaged header makes numpy say
            raise DataError(f"{path}: no array of labels ({broken}); it must be what numpy.save writes") from None
        most = len(self.files) * TILES**2
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) > most:
            raise DataError(
                f"{path}: needs one whole number for each of at most {most} tiles, has "
                f"{labels.dtype} {labels.shape}; is a sheet missing?"
            )
        least = most - TILES**2 + 1  # only the last sheet may have tiles without an image
        if len(labels) < least:
            raise DataError(
                f"{path}: has {len(labels)} labels, and {len(self.files)} sheets of {TILES**2} tiles need at least "
                f"{least}: {least - len(labels)} are missing; copy it again"
            )
        _check_range(path, int(labels.min()), int(labels.max()))
        return labels.astype(np.int64)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> ImageChunk:
        return self._sheet(index) if self.sheets else self._batch(index)

    def _sheet(self, index: int) -> ImageChunk:
        path = self.files[index]
        sheet = read_image(path).numpy()
        if sheet.shape != (3, TILES * SIZE, TILES * SIZE):
            raise DataError(f"{path}: a sheet has {TILES * SIZE} x {TILES * SIZE} pixels, this one {sheet.shape[1:]}")
        tiles = sheet.reshape(3, TILES, SIZE, TILES, SIZE).transpose(1, 3, 0, 2, 4).reshape(-1, 3, SIZE, SIZE)
        assert self._labels is not None
        labels = self._labels[index * TILES**2 : (index + 1) * TILES**2]
        return ImageChunk(tiles[: len(labels)], labels)

    def _batch(self, index: int) -> ImageChunk:
        path = self.files[index]
        found = read_batch(path)
        data, labels = found.get("data"), found.get("labels")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * SIZE**2:
            raise DataError(f"{path}: no batch of CIFAR (its data are not n x {3 * SIZE**2} bytes)")
        if not isinstance(labels, list) or len(labels) != len(data) or not all(isinstance(one, int) for one in labels):
            raise DataError(f"{path}: no batch of CIFAR-10 (it has no label for each of its {len(data)} images)")
        if labels:
            _check_range(path, min(labels), max(labels))
        return ImageChunk(data.reshape(-1, 3, SIZE, SIZE), np.array(labels, np.int64))

    def origin(self) -> Any:
        labels = [self.root / f"{self.split}_labels.npy"] if self.sheets else []
        # by content: all batches have one length, and copies may have any time
        return [[path.name, _digest(path)] for path in [*self.files, *labels]]

    def transform(self) -> str:
        return "tiles of sheets" if self.sheets else "as stored"


def _check_range(path: Path, lowest: int, highest: int) -> None:
    if lowest < 0 or highest >= len(CLASSES):
        raise DataError(f"{path}: labels must lie in 0 ... {len(CLASSES) - 1}, got {lowest} ... {highest}")


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as closed:
        raise DataError(f"{path}: cannot be read ({closed.strerror or closed})") from None


def _find(root: Path, split: str) -> tuple[Path, list[Path]]:
    """The folder and its files: all batches, or sheets numbered from 0 without a gap."""
    missing: list[Path] = []
    for folder in (root / place for place in PLACES):
        batches = [folder / name for name in BATCHES[split]]
        there = [path for path in batches if path.is_file()]
        if len(there) == len(batches):
            return folder, batches
        if there:
            missing += [path for path in batches if path not in there]
        sheets = sorted(folder.glob(f"{split}_[0-9][0-9].jpg"))
        if sheets:
            wanted = [folder / f"{split}_{i:02d}.jpg" for i in range(len(sheets))]
            if sheets == wanted:
                return folder, sheets
            missing += [path for path in wanted if path not in sheets]
    if missing:
        raise DataError(f"cifar10: missing: {', '.join(map(str, missing))}", [f"{path}: missing" for path in missing])
    raise DataError(
        f"cifar10: {root} holds neither {BATCHES[split][0]} (cifar-10-batches-py, unpacked) nor {split}_00.jpg (sheets)"
    )
