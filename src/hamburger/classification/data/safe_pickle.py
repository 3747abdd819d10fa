"""CIFAR's python batches without trusting them: an unpickler that knows arrays of bytes, lists and nothing else.

numpy's own types are not safe to hand to a stream: `ndarray` called with a type of objects and a buffer takes any bytes
for addresses. Here names of numpy stand for small types of this file, which only ever hold bytes.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hamburger.errors import DataError

ARRAY = "ndarray"  # stands for the type in a stream; nothing can be made by calling it


class _Kind:
    """What a stream takes for numpy's dtype."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        if _text(code).lstrip("|") != "u1":
            raise pickle.UnpicklingError(f"it has an array of {_text(code)!r}, not of bytes")

    def __setstate__(self, state: object) -> None:
        """Order and alignment, which bytes do not have."""


class _Array:
    """What a stream takes for an array: empty, then filled once from the bytes that follow."""

    def __init__(self, kind: object, *_: object) -> None:
        if kind is not ARRAY:
            raise pickle.UnpicklingError(f"it builds a {kind}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, _Kind) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("its array is not of bytes")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _encoded(text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


# All that a batch of 2009 refers to. Python 2 wrote them, under the names that numpy's parts had then.
ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): ARRAY,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encoded,
}


class _Admitting(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of CIFAR holds")
        return ADMITTED[module, name]


def read_batch(path: Path) -> dict[str, Any]:
    """The mapping in a batch file, its keys as text. Runs nothing that the file says."""
    try:
        with path.open("rb") as file:
            found = _Admitting(file, encoding="bytes").load()
    except OSError as closed:
        raise DataError(f"{path}: cannot be read ({closed.strerror or closed})") from None
    except Exception as broken:  # whatever a damaged stream makes the unpickler say
        raise DataError(f"{path}: no batch of CIFAR ({broken})") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: no batch of CIFAR (it holds a {type(found).__name__})")
    return {_text(key): _unwrapped(value) for key, value in found.items()}


def _unwrapped(value: Any) -> Any:
    """numpy's array; None of one that was never filled."""
    return getattr(value, "values", None) if isinstance(value, _Array) else value


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
