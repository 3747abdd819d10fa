"""`cifar10`: the Python batches of the official archive, or the same images as JPEG sheets.

Sheets have 50 x 50 tiles in raster order, `train_00.jpg` ... and `test_00.jpg` ..., with labels in `train_labels.npy`
and `test_labels.npy`. They are lossy, so distances such as FID must take their real images from them too.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hamburger.classification.data.base import ImageChunk, ImageSource, Labels, image_sources
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
        self.files = _find_files(Path(root), split)
        self.sheet_labels: Labels | None = None
        if self.files[0].suffix == ".jpg":
            self.label_file = self.files[0].with_name(f"{split}_labels.npy")
            self.sheet_labels = _read_sheet_labels(self.label_file, len(self.files))

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> ImageChunk:
        path = self.files[index]
        if self.sheet_labels is None:
            return read_batch(path)
        sheet = read_image(path).numpy()
        if sheet.shape != (3, TILES * SIZE, TILES * SIZE):
            raise DataError(f"{path}: a sheet must be {TILES * SIZE} x {TILES * SIZE} pixels (got {sheet.shape[1:]})")
        tiles = sheet.reshape(3, TILES, SIZE, TILES, SIZE).transpose(1, 3, 0, 2, 4).reshape(-1, 3, SIZE, SIZE)
        labels = self.sheet_labels[index * TILES**2 : (index + 1) * TILES**2]
        return ImageChunk(tiles[: len(labels)], labels)

    def origin(self) -> Any:
        labels = [] if self.sheet_labels is None else [self.label_file]
        # by content: all batches have the same size, and copies have arbitrary times
        return [[path.name, hashlib.sha256(_read_bytes(path)).hexdigest()] for path in [*self.files, *labels]]


def _find_files(root: Path, split: str) -> list[Path]:
    """Return all batches, or sheets numbered from 0 without a gap."""
    missing: list[Path] = []
    for folder in (root / place for place in PLACES):
        batches = [folder / name for name in BATCHES[split]]
        sheets = [folder / f"{split}_{i:02d}.jpg" for i in range(len(list(folder.glob(f"{split}_[0-9][0-9].jpg"))))]
        for expected in (batches, sheets):
            absent = [path for path in expected if not path.is_file()]
            if expected and not absent:
                return expected
            if expected is sheets or len(absent) < len(expected):
                missing += absent
    if missing:
        raise DataError(f"cifar10: missing: {', '.join(map(str, missing))}", [f"{path}: missing" for path in missing])
    raise DataError(
        f"cifar10: {root} contains neither {BATCHES[split][0]} (cifar-10-batches-py, unpacked) nor "
        f"{split}_00.jpg (sheets)"
    )


def _read_sheet_labels(path: Path, sheets: int) -> Labels:
    try:
        with path.open("rb") as file:  # not np.load, which also opens archives and pickles
            labels = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as closed:
        raise DataError(f"{path}: cannot be read ({closed.strerror or closed})") from None
    except Exception as broken:  # a damaged header can make numpy raise anything
        raise DataError(f"{path}: not an array of labels ({broken}); write it with numpy.save") from None
    most = sheets * TILES**2
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) > most:
        raise DataError(
            f"{path}: needs one integer for each of at most {most} tiles (got {labels.dtype} {labels.shape}); is a "
            f"sheet missing?"
        )
    least = most - TILES**2 + 1  # only the last sheet may have tiles without an image
    if len(labels) < least:
        raise DataError(
            f"{path}: {sheets} sheets of {TILES**2} tiles need at least {least} labels (got {len(labels)}: "
            f"{least - len(labels)} are missing); copy it again"
        )
    _check_range(path, int(labels.min()), int(labels.max()))
    return np.asarray(labels, np.int64)


def _check_range(path: Path, lowest: int, highest: int) -> None:
    if lowest < 0 or highest >= len(CLASSES):
        raise DataError(f"{path}: labels must be in 0 ... {len(CLASSES) - 1} (got {lowest} ... {highest})")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as closed:
        raise DataError(f"{path}: cannot be read ({closed.strerror or closed})") from None


# -- reading a pickle safely -------------------------------------------------------------------------------------------
#
# Giving numpy's own types to a pickle is not safe: `ndarray` called with an object dtype and a buffer takes any bytes
# as addresses. Here all of numpy's names resolve to one class that only keeps the state of the object.


class _NumpyObject:
    state: Any = None

    def __init__(self, *_: object) -> None:
        """Ignore the arguments: the state has all values."""

    def __setstate__(self, state: Any) -> None:
        self.state = state


# Everything a batch refers to. Python 2 wrote them in 2009, with the names that numpy had then.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _NumpyObject,
    ("numpy._core.multiarray", "_reconstruct"): _NumpyObject,
    ("numpy", "ndarray"): _NumpyObject,
    ("numpy", "dtype"): _NumpyObject,
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),  # how Python 3 writes bytes in protocol 2
}


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it uses {module}.{name}, which no CIFAR batch contains")
        return ALLOWED[module, name]


def read_batch(path: Path) -> ImageChunk:
    """Return the images of a batch file. Executes nothing in the file."""
    content = _read_bytes(path)
    try:
        batch = _SafeUnpickler(io.BytesIO(content), encoding="bytes").load()
        _, (count, length), _, fortran, values = batch[b"data"].state
        data = np.frombuffer(values, np.uint8).reshape(count, length, order="F" if fortran else "C")
        labels = batch[b"labels"]
    except Exception as broken:  # a damaged file can make the unpickler raise anything
        raise DataError(f"{path}: not a CIFAR batch ({broken})") from None
    if length != 3 * SIZE**2:
        raise DataError(f"{path}: not a CIFAR batch (its data are not n x {3 * SIZE**2} bytes)")
    if not isinstance(labels, list) or len(labels) != count or not all(isinstance(one, int) for one in labels):
        raise DataError(f"{path}: not a CIFAR-10 batch (it needs a label for each of its {count} images)")
    if labels:
        _check_range(path, min(labels), max(labels))
    return ImageChunk(data.reshape(-1, 3, SIZE, SIZE), np.array(labels, np.int64))
