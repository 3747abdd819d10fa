"""`cifar10`: the Python batches of the official archive."""

from __future__ import annotations

import hashlib
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hamburger.classification.data.base import ImageChunk, ImageSource, image_sources
from hamburger.errors import DataError, OptionError, check_choice, shorten
from hamburger.training.safe_files import MAX_FILE_BYTES, describe, read_bytes

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


def _check_range(path: Path, lowest: int, highest: int) -> None:
    if lowest < 0 or highest >= len(CLASSES):
        raise DataError(f"{path}: labels must be in 0 ... {len(CLASSES) - 1} (got {lowest} ... {highest})")


# -- reading a pickle safely -------------------------------------------------------------------------------------------
#
# Python's own unpickler allocates what a file of nine bytes tells it to, and creates or calls what the file names. Here
# a loop over the opcodes builds dicts, lists and tuples, and keeps the state of numpy's objects; it calls nothing.


class _NumpyObject:
    state: Any = None


# everything a batch refers to; Python 2 wrote them in 2009, with the names that numpy had then
NUMPY_NAMES = {f"{module} _reconstruct" for module in ("numpy.core.multiarray", "numpy._core.multiarray")}
NUMPY_NAMES |= {"numpy ndarray", "numpy dtype"}
ENCODE = "_codecs encode"  # how Python 3 writes bytes in protocol 2
VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1")
TEXTS = ("SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8")


def read_pickle(content: bytes) -> Any:
    """Return the value of a pickle of numbers, strings, dicts, lists, tuples and numpy arrays (`_NumpyObject`).

    Raises an exception of any type for other content.
    """
    stack: list[Any] = []
    above: list[list[Any]] = []  # the stacks below each mark
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(content):
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case name if name in VALUES:
                stack.append(VALUES[name])
            case name if name in EMPTY:
                stack.append(EMPTY[name]())
            case name if name in NUMBERS or name in TEXTS:
                stack.append(argument)
            case "MARK":
                above.append(stack)
                stack = []
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET" | "GET":
                stack.append(memo[argument])
            case "GLOBAL" | "STACK_GLOBAL" as name:
                called = argument if name == "GLOBAL" else f"{stack.pop(-2)} {stack.pop()}"
                if called not in (*NUMPY_NAMES, ENCODE):
                    raise ValueError(f"it uses {shorten(called)}, which no CIFAR batch contains")
                stack.append(called)
            case "APPEND":
                stack[-2].append(stack.pop())
            case "SETITEM":
                stack[-3][stack[-2]] = stack[-1]
                del stack[-2:]
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                count = int(name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "TUPLE" | "LIST" | "APPENDS" | "SETITEMS" as name:
                items, stack = stack, above.pop()
                if name in ("TUPLE", "LIST"):
                    stack.append(tuple(items) if name == "TUPLE" else items)
                elif name == "APPENDS":
                    stack[-1].extend(items)
                else:
                    stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "REDUCE":
                called, arguments = stack[-2:]
                stack[-2:] = [arguments[0].encode("latin1") if called == ENCODE else _NumpyObject()]
            case "BUILD":
                state = stack.pop()
                if not isinstance(stack[-1], _NumpyObject):
                    raise ValueError("it sets the state of something else than an array")
                stack[-1].state = state
            case name:
                raise ValueError(f"it uses the opcode {name}, which no CIFAR batch contains")
    raise ValueError("it ends early")


def read_batch(path: Path) -> ImageChunk:
    """Return the images of a batch file. Executes nothing in the file."""
    content = read_bytes(path, MAX_FILE_BYTES)
    try:
        # names are bytes or text, by the version of Python that wrote them
        entries = {key if isinstance(key, str) else key.decode(): value for key, value in read_pickle(content).items()}
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
    if labels:
        _check_range(path, min(labels), max(labels))
    return ImageChunk(data.reshape(-1, 3, SIZE, SIZE), np.array(labels, np.int64))
