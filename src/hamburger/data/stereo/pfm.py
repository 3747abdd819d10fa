"""Portable float maps: one float32 a pixel, rows from the bottom up, in either order of bytes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hamburger.errors import DataError

Floats = npt.NDArray[np.float32]
HEADER = re.compile(rb"(P[fF])\s+(\d+)\s+(\d+)\s+([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s")
LONGEST = 256  # bytes of a header


def read_pfm(path: Path) -> Floats:
    """h w, rows from the top down, in this machine's order of bytes."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except OSError as broken:
        raise DataError(f"{path}: cannot be read ({broken})") from None
    found = HEADER.match(content[:LONGEST])
    if found is None:
        raise DataError(f"{path}: no PFM file: it should begin with Pf, width, height and a scale")
    kind, width, height, scale = found[1], int(found[2]), int(found[3]), float(found[4])
    if kind == b"PF":
        raise DataError(f"{path}: a PFM of three channels; a disparity map has one (Pf)")
    if not width or not height or not scale:
        raise DataError(f"{path}: a PFM of {width} x {height} pixels with scale {scale:g}; none of them may be 0")
    body = content[found.end() :]
    if len(body) != 4 * width * height:
        raise DataError(
            f"{path}: {len(body)} bytes of pixels, but {width} x {height} float32 take {4 * width * height}; the file "
            "is damaged or incomplete"
        )
    # the sign of the scale is the order of bytes; its size is that of a unit, which no disparity map uses
    values = np.frombuffer(body, "<f4" if scale < 0 else ">f4").reshape(height, width)
    return np.ascontiguousarray(values[::-1], dtype=np.float32)


def pfm(values: Floats) -> bytes:
    """The content of a file that `read_pfm` reads, lowest byte first."""
    height, width = values.shape
    return f"Pf\n{width} {height}\n-1\n".encode() + np.ascontiguousarray(values[::-1], dtype="<f4").tobytes()
