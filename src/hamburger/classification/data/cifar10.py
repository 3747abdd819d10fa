"""`cifar10`: the Python batches of the official archive."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hamburger.checkpoints.read import check_pickle
from hamburger.classification.data.base import ImageChunk, ImageSource, image_sources
from hamburger.errors import DataError, OptionError, check_choice, shorten
from hamburger.files import read_bytes
from hamburger.training.safe_files import MAX_FILE_BYTES, describe

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
            raise DataError(f"cifar10: missing: {', '.join(map(str, missing))}; unpack the archive again", problems)
    raise DataError(f"cifar10: {root} does not contain {BATCHES[split][0]}; give the unpacked {FOLDER}")


# -- reading a pickle safely -------------------------------------------------------------------------------------------
#
# The unpickler in C allocates what a file of nine bytes tells it to; the one in Python, no more than the file holds. Of
# its instructions only those of a batch are left, and what a batch calls is replaced by what keeps its arguments.


class NumpyState:
    """Stands for an array or its dtype, and keeps the state that the file gives it."""

    state: Any = None

    def __init__(self, *args: Any) -> None: ...


INSTRUCTIONS = (
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG"),
    *("LONG1", "SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINBYTES", "BINBYTES"),
    *("BINBYTES8", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "APPEND"),
    *("APPENDS", "SETITEM", "SETITEMS", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE"),
)
CODES = [getattr(pickle, name)[0] for name in INSTRUCTIONS]
# everything a batch refers to; Python 2 wrote them in 2009, with the names that numpy had then
NAMES: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": NumpyState,
    "numpy._core.multiarray _reconstruct": NumpyState,
    "numpy ndarray": NumpyState,
    "numpy dtype": NumpyState,
    # how Python 3 writes bytes in protocol 2; encoding the same text many times would take any amount of memory
    "_codecs encode": lambda text, encoding: text,
}
UNPICKLER: Any = pickle._Unpickler


class Instructions(dict[int, Any]):
    def __missing__(self, code: int) -> None:
        raise ValueError(f"it uses the instruction {bytes([code])!r}, which no CIFAR batch contains")


class BatchUnpickler(UNPICKLER):  # type: ignore[misc]
    """Reads numbers, strings, dicts, lists, tuples and numpy arrays (`NumpyState`); raises on other content."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if f"{module} {name}" not in NAMES:
            raise ValueError(f"it uses {shorten(f'{module} {name}')}, which no CIFAR batch contains")
        return NAMES[f"{module} {name}"]

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], NumpyState):
            raise ValueError("it sets the state of something else than an array")
        self.stack[-1].state = state

    dispatch = Instructions({code: UNPICKLER.dispatch[code] for code in CODES} | {pickle.BUILD[0]: load_build})


def read_batch(path: Path) -> ImageChunk:
    """Return the images of a batch file. Executes nothing in the file."""
    content = read_bytes(path, MAX_FILE_BYTES)
    try:
        check_pickle(io.BytesIO(content))
        # names are bytes or text, by the version of Python that wrote them
        values = BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        entries = {key if isinstance(key, str) else key.decode(): value for key, value in values.items()}
        _, (count, length), _, fortran, values = entries["data"].state
        values = values.encode("latin1") if isinstance(values, str) else values
        data = np.frombuffer(values, np.uint8).reshape(count, length, order="F" if fortran else "C")
        labels = entries["labels"]
    except Exception as broken:  # a damaged file leads anywhere
        raise DataError(f"{path}: not a CIFAR batch ({describe(broken)})") from None
    if length != 3 * SIZE**2:
        raise DataError(f"{path}: not a CIFAR batch (its data are not n x {3 * SIZE**2} bytes)")
    if not isinstance(labels, list) or len(labels) != count or not all(isinstance(one, int) for one in labels):
        raise DataError(f"{path}: not a CIFAR-10 batch (it needs a label for each of its {count} images)")
    if labels and not 0 <= min(labels) <= max(labels) < len(CLASSES):
        raise DataError(f"{path}: labels must be in 0 ... {len(CLASSES) - 1} (got {min(labels)} ... {max(labels)})")
    return ImageChunk(data.reshape(-1, 3, SIZE, SIZE), np.array(labels, np.int64))
