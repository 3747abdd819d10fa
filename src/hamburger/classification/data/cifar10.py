"""`cifar10`: the Python batches of the official archive."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hamburger.classification.data.base import ImageChunk, ImageSource, image_sources
from hamburger.errors import DataError, OptionError, check_choice

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZE = 32
BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
FOLDER = "cifar-10-batches-py"


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
        return [[path.name, hashlib.sha256(_read_bytes(path)).hexdigest()] for path in self.files]


def _find_batches(root: Path, split: str) -> list[Path]:
    """Return all batches of a split."""
    for folder in (root, root / FOLDER):
        batches = [folder / name for name in BATCHES[split]]
        missing = [path for path in batches if not path.is_file()]
        if not missing:
            return batches
        if len(missing) < len(batches):
            problems = [f"{path}: missing" for path in missing]
            raise DataError(f"cifar10: missing: {', '.join(map(str, missing))}; unpack the archive again", problems)
    raise DataError(f"cifar10: {root} does not contain {BATCHES[split][0]}; give the unpacked {FOLDER}")


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
