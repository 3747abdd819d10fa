"""What stereo data sets in files share: pairs, disparities as PNG, PFM or npy, and calibration files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hamburger.errors import DataError, check_count, did_you_mean
from hamburger.stereo.data.base import UNKNOWN, StereoSample, StereoSet
from hamburger.stereo.data.batches import shrunk
from hamburger.training.image_files import SUFFIXES, read_grey, read_image

SEEN = 255  # in a mask of Middlebury: what both cameras see; 128 is what only the left one does


class StereoFiles(NamedTuple):
    """Where a pair lies, or should: what is not there is found by the checks."""

    id: str
    left: Path
    right: Path
    disparity: Path
    scale: float = 1.0  # of disparities in PNGs
    disparity_right: Path | None = None  # where there is one, it tells what both cameras see
    mask: Path | None = None  # and so does this
    calibration: Path | None = None  # says how large the images should be

    def paths(self) -> list[Path]:
        return [path for path in self if isinstance(path, Path)]


class StereoFileSet(StereoSet):
    """`shrink`: a whole number by which images and disparities are made smaller."""

    def __init__(self, name: str, split: str, pairs: Sequence[StereoFiles], *, shrink: int = 1) -> None:
        check_count(name, "shrink", shrink, least=1)
        self.name, self.split, self.pairs, self.shrink = name, split, tuple(pairs), shrink
        self.ids = [pair.id for pair in self.pairs]

    def read(self, index: int, *, occlusions: bool) -> StereoSample:
        pair = self.pairs[index]
        left, right = read_image(pair.left), read_image(pair.right)
        disparity = read_disparity(pair.disparity, scale=pair.scale)
        size = tuple(left.shape[1:])
        for path, found in ((pair.right, tuple(right.shape[1:])), (pair.disparity, disparity.shape)):
            if found != size:
                raise DataError(mismatch(path, found, pair.left, size))
        seen = self._seen(pair, disparity) if occlusions else None
        known = None if seen is None else torch.from_numpy(np.array(seen))
        return shrunk(StereoSample(left, right, torch.from_numpy(disparity), known), self.shrink)

    def _seen(self, pair: StereoFiles, disparity: Floats) -> Mask | None:
        if pair.mask is not None:
            mask = read_grey(pair.mask)
            if mask.shape != disparity.shape:
                raise DataError(mismatch(pair.mask, mask.shape, pair.left, disparity.shape))
            return mask == SEEN
        if pair.disparity_right is not None:
            other = read_disparity(pair.disparity_right, scale=pair.scale)
            if other.shape != disparity.shape:
                raise DataError(mismatch(pair.disparity_right, other.shape, pair.left, disparity.shape))
            return consistent(disparity, other)
        return None


def mismatch(path: Path, found: Sequence[int], left: Path, size: Sequence[int]) -> str:
    return f"{path}: {found[1]} x {found[0]} pixels, but the left image {left} has {size[1]} x {size[0]}"


def image_at(folder: Path, stem: str) -> Path:
    """The image of that name in whichever format it is, or the path that it should have."""
    for suffix in SUFFIXES:
        path = folder / f"{stem}{suffix}"
        if path.is_file():
            return path
    return folder / f"{stem}.png"


def listed(root: Path, split: str, pairs: Iterable[StereoFiles]) -> list[StereoFiles] | None:
    """Those that `<split>.txt` names, one id a line, in its order; None where there is no such list."""
    path = root / f"{split}.txt"
    if not path.is_file():
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as broken:
        raise DataError(f"{path}: no readable list ({broken})") from None
    known = {pair.id: pair for pair in pairs}
    wanted = [line.strip() for line in lines if line.strip()]
    unknown = [id for id in wanted if id not in known]
    if unknown:
        raise DataError(
            "\n".join(f"{path}: no pair '{id}'{did_you_mean(id, sorted(known)[:40])}" for id in unknown[:20]), unknown
        )
    return [known[id] for id in wanted]


# ----------------------------------------------------------------------------------------------------------------------
# Disparity files to pixels: PNG with a scale, PFM, or an array of numpy; what is unknown becomes 0.


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


# ----------------------------------------------------------------------------------------------------------------------
# Portable float maps: one float32 a pixel, rows from the bottom up, in either order of bytes.


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


# ----------------------------------------------------------------------------------------------------------------------
# `calib.txt` of Middlebury 2014: lines such as `width=2964`.


def read_calibration(path: Path) -> dict[str, float]:
    """The numbers by name; matrices are left out."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as broken:
        raise DataError(f"{path}: cannot be read ({broken})") from None
    found: dict[str, float] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not value.strip().startswith("["):
            try:
                found[name.strip()] = float(value)
            except ValueError:
                raise DataError(f"{path}: '{line.strip()}' is no number; lines are such as width=2964") from None
    return found
