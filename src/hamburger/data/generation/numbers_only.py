"""CIFAR's python batches without trusting them: an unpickler that knows arrays, bytes, lists and nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hamburger.errors import DataError

# All that a batch of 2009 refers to. Python 2 wrote them, under the names that numpy's parts had then.
ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),  # how protocol 2 writes bytes
}


class _Admitting(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of CIFAR holds")
        if name == "_reconstruct":
            return _empty_array
        return super().find_class(module, name)


def _empty_array(kind: type, shape: tuple[int, ...], code: bytes | str) -> Any:
    """What numpy fills from the bytes that follow; only its own arrays."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError(f"it builds a {kind}")
    return np.ndarray.__new__(np.ndarray, shape, np.dtype(code.decode("latin1") if isinstance(code, bytes) else code))


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
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}
