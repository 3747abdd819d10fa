"""Disparity files to pixels: PNG with a scale, PFM, or an array of numpy; what is unknown becomes 0."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hamburger.data.images import read_grey
from hamburger.data.stereo.base import UNKNOWN
from hamburger.data.stereo.pfm import Floats, read_pfm
from hamburger.errors import DataError

Mask = npt.NDArray[np.bool_]
CONSISTENT = 1.0  # pixels by which two disparities of one point may differ


def read_disparity(path: Path, *, scale: float = 1.0) -> Floats:
    """h w, pixels. A PNG holds `scale` times the disparity, 0 where unknown; in other files infinity is unknown.

    NaN is unknown in an .npz alone: those who wrote a PFM had infinity for that, and a NaN is a mistake of theirs.
    """
    if path.suffix.lower() == ".png":
        return (read_grey(path) / np.float32(scale)).astype(np.float32)
    values = read_array(path) if path.suffix.lower() == ".npz" else read_pfm(path)
    if path.suffix.lower() == ".npz":
        values = np.where(np.isnan(values), np.float32(np.inf), values)
    if np.isnan(values).any():
        raise DataError(f"{path}: {int(np.isnan(values).sum())} pixels are NaN; write infinity where nothing is known")
    if (values < 0).any():
        raise DataError(
            f"{path}: {int((values < 0).sum())} disparities are negative, down to {values.min():g}; left pixel x "
            "matches right pixel x - d, so d is positive: swap the images, or change the sign"
        )
    return np.where(np.isinf(values), np.float32(UNKNOWN), values)


def read_array(path: Path) -> Floats:
    """The one array of an .npz, which is read without running anything in it."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = list(archive.files)
            values = archive[names[0]] if len(names) == 1 else None
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as broken:
        raise DataError(f"{path}: no readable .npz ({broken})") from None
    if values is None or values.ndim != 2 or not np.issubdtype(values.dtype, np.floating):
        what = f"{len(names)} arrays" if values is None else f"{values.dtype} of shape {values.shape}"
        raise DataError(f"{path}: holds {what}; a disparity map is one array h w of floating point numbers")
    return values.astype(np.float32)


def consistent(left: Floats, right: Floats) -> Mask:
    """Where the right camera's disparity at x - d agrees with d: what both cameras see.   h w, h w   ->   h w"""
    h, w = left.shape
    there = np.rint(np.arange(w) - left).astype(np.int64)
    rows = np.arange(h)[:, None]
    other = right[rows, there.clip(0, w - 1)]
    inside = (there >= 0) & (left != UNKNOWN) & (other != UNKNOWN)
    return inside & (np.abs(other - left) <= CONSISTENT)
