"""Read CIFAR's Python batches safely: an unpickler that accepts only byte arrays, lists and plain values.

Giving numpy's own types to a pickle is not safe: `ndarray` called with an object dtype and a buffer takes any bytes as
addresses. Here numpy's names resolve to small classes of this file, which only ever hold bytes.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hamburger.errors import DataError

ARRAY = "ndarray"  # replaces the type in a pickle; not callable


class _ByteDtype:
    """Replaces numpy's dtype in a pickle."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        if _to_text(code).lstrip("|") != "u1":
            raise pickle.UnpicklingError(f"it has an array of {_to_text(code)!r}, not of bytes")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which bytes do not have."""


class _ByteArray:
    """Replaces numpy's array in a pickle: empty, then filled once from the bytes that follow."""

    def __init__(self, kind: object, *_: object) -> None:
        if kind is not ARRAY:
            raise pickle.UnpicklingError(f"it builds a {kind}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _ByteDtype) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("its array is not of bytes")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


def _encode(text: str, encoding: str) -> bytes:
    """Decode bytes as pickle protocol 2 writes them."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it uses the encoding {encoding!r}")
    return text.encode("latin1")


# Everything a batch refers to. Python 2 wrote them in 2009, with the names that numpy had then.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _ByteArray,
    ("numpy._core.multiarray", "_reconstruct"): _ByteArray,
    ("numpy", "ndarray"): ARRAY,
    ("numpy", "dtype"): _ByteDtype,
    ("_codecs", "encode"): _encode,
}


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it uses {module}.{name}, which no CIFAR batch contains")
        return ALLOWED[module, name]


def read_batch(path: Path) -> dict[str, Any]:
    """Return the mapping in a batch file, with its keys as text. Executes nothing in the file."""
    try:
        with path.open("rb") as file:
            batch = _SafeUnpickler(file, encoding="bytes").load()
    except OSError as closed:
        raise DataError(f"{path}: cannot be read ({closed.strerror or closed})") from None
    except Exception as broken:  # a damaged file can make the unpickler raise anything
        raise DataError(f"{path}: not a CIFAR batch ({broken})") from None
    if not isinstance(batch, dict):
        raise DataError(f"{path}: not a CIFAR batch (it holds a {type(batch).__name__})")
    return {_to_text(key): _unwrap(value) for key, value in batch.items()}


def _unwrap(value: Any) -> Any:
    """Return the numpy array, None if it was never filled."""
    return getattr(value, "values", None) if isinstance(value, _ByteArray) else value


def _to_text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
