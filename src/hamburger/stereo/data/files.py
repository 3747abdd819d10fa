"""Stereo data sets in files: pairs, disparities as PNG, PFM or npz, and calibration files."""

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
from hamburger.stereo.data.batches import shrink_sample
from hamburger.training.image_files import SUFFIXES, read_grey, read_image

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

MASK_SEEN = 255  # in a Middlebury mask: pixels that both cameras see; 128 are those that only the left one sees


class StereoFiles(NamedTuple):
    """Paths of a pair. The checks report files that are missing."""

    id: str
    left: Path
    right: Path
    disparity: Path
    scale: float = 1.0  # factor of disparities in PNGs
    disparity_right: Path | None = None  # if given, tells which pixels both cameras see
    mask: Path | None = None  # likewise
    calibration: Path | None = None  # gives the size of the images

    def paths(self) -> list[Path]:
        return [path for path in self if isinstance(path, Path)]


class StereoFileSet(StereoSet):
    """Pairs in files. `shrink`: an integer factor by which images and disparities are made smaller."""

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
                raise DataError(describe_mismatch(path, found, pair.left, size))
        mask = self._read_seen(pair, disparity) if occlusions else None
        seen = None if mask is None else torch.from_numpy(np.array(mask))
        return shrink_sample(StereoSample(left, right, torch.from_numpy(disparity), seen), self.shrink)

    def _read_seen(self, pair: StereoFiles, disparity: Floats) -> Mask | None:
        if pair.mask is not None:
            mask = read_grey(pair.mask)
            if mask.shape != disparity.shape:
                raise DataError(describe_mismatch(pair.mask, mask.shape, pair.left, disparity.shape))
            return mask == MASK_SEEN
        if pair.disparity_right is not None:
            other = read_disparity(pair.disparity_right, scale=pair.scale)
            if other.shape != disparity.shape:
                raise DataError(describe_mismatch(pair.disparity_right, other.shape, pair.left, disparity.shape))
            return find_consistent(disparity, other)
        return None


def describe_mismatch(path: Path, found: Sequence[int], left: Path, size: Sequence[int]) -> str:
    return f"{path}: {found[1]} x {found[0]} pixels, but the left image {left} has {size[1]} x {size[0]}"


def find_image(folder: Path, stem: str) -> Path:
    """The path of the image of that name in any format; if there is none, the path it should have."""
    for suffix in SUFFIXES:
        path = folder / f"{stem}{suffix}"
        if path.is_file():
            return path
    return folder / f"{stem}.png"


def select_listed(root: Path, split: str, pairs: Iterable[StereoFiles]) -> list[StereoFiles] | None:
    """The pairs whose ids `<split>.txt` lists, one per line, in its order; None if there is no such list."""
    path = root / f"{split}.txt"
    if not path.is_file():
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as text ({error})") from None
    known = {pair.id: pair for pair in pairs}
    requested = [line.strip() for line in lines if line.strip()]
    unknown = [id for id in requested if id not in known]
    if unknown:
        raise DataError(
            "\n".join(f"{path}: no pair '{id}'{did_you_mean(id, sorted(known)[:40])}" for id in unknown[:20]), unknown
        )
    return [known[id] for id in requested]


# -- disparity files ---------------------------------------------------------------------------------------------------

MAX_INCONSISTENCY = 1.0  # pixels by which two disparities of one point may differ


def read_disparity(path: Path, *, scale: float = 1.0) -> Floats:
    """The disparity of a PNG, PFM or .npz file in pixels, 0 where unknown.   ->   h w

    A PNG holds `scale` times the disparity, 0 where unknown; in other files infinity is unknown. NaN is unknown only in
    an .npz: a PFM has infinity for that, so a NaN in it is a mistake.
    """
    if path.suffix.lower() == ".png":
        return (read_grey(path) / np.float32(scale)).astype(np.float32)
    values = read_array(path) if path.suffix.lower() == ".npz" else read_pfm(path)
    if path.suffix.lower() == ".npz":
        values = np.where(np.isnan(values), np.float32(np.inf), values)
    if np.isnan(values).any():
        raise DataError(
            f"{path}: {int(np.isnan(values).sum())} pixels are NaN; write infinity where the disparity is unknown"
        )
    if (values < 0).any():
        raise DataError(
            f"{path}: {int((values < 0).sum())} disparities are negative, down to {values.min():g}; left pixel x "
            "matches right pixel x - d, so d is positive: swap the images, or change the sign"
        )
    return np.where(np.isinf(values), np.float32(UNKNOWN), values)


def read_array(path: Path) -> Floats:
    """The only array of an .npz, read without unpickling.   ->   h w"""
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = list(archive.files)
            values = archive[names[0]] if len(names) == 1 else None
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not readable as .npz ({error})") from None
    if values is None or values.ndim != 2 or not np.issubdtype(values.dtype, np.floating):
        content = f"{len(names)} arrays" if values is None else f"{values.dtype} of shape {values.shape}"
        raise DataError(f"{path}: holds {content}; a disparity map is one array h w of floating-point numbers")
    return values.astype(np.float32)


def find_consistent(left: Floats, right: Floats) -> Mask:
    """Pixels that both cameras see: the right disparity at x - d agrees with d.   h w, h w   ->   h w"""
    h, w = left.shape
    target = np.rint(np.arange(w) - left).astype(np.int64)
    rows = np.arange(h)[:, None]
    other = right[rows, target.clip(0, w - 1)]
    inside = (target >= 0) & (left != UNKNOWN) & (other != UNKNOWN)
    return inside & (np.abs(other - left) <= MAX_INCONSISTENCY)


# -- PFM: one float32 per pixel, rows from the bottom up, in either byte order -----------------------------------------

PFM_HEADER = re.compile(rb"(P[fF])\s+(\d+)\s+(\d+)\s+([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s")
MAX_HEADER = 256  # bytes


def read_pfm(path: Path) -> Floats:
    """The content of a one-channel PFM file.   ->   h w, rows from the top down"""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    header = PFM_HEADER.match(content[:MAX_HEADER])
    if header is None:
        raise DataError(f"{path}: not a PFM file; it should begin with Pf, width, height and a scale")
    kind, width, height, scale = header[1], int(header[2]), int(header[3]), float(header[4])
    if kind == b"PF":
        raise DataError(f"{path}: has three channels (PF); a disparity map has one (Pf)")
    if not width or not height or not scale:
        raise DataError(f"{path}: has {width} x {height} pixels and scale {scale:g}; none of them may be 0")
    body = content[header.end() :]
    if len(body) != 4 * width * height:
        raise DataError(
            f"{path}: has {len(body)} bytes of pixels, but {width} x {height} float32 take {4 * width * height}; the "
            "file is damaged or incomplete"
        )
    # the sign of the scale gives the byte order; its size is a unit, which disparity maps do not use
    values = np.frombuffer(body, "<f4" if scale < 0 else ">f4").reshape(height, width)
    return np.ascontiguousarray(values[::-1], dtype=np.float32)


def encode_pfm(values: Floats) -> bytes:
    """The content of a little-endian PFM file.   h w"""
    height, width = values.shape
    return f"Pf\n{width} {height}\n-1\n".encode() + np.ascontiguousarray(values[::-1], dtype="<f4").tobytes()


# -- calib.txt of Middlebury 2014 --------------------------------------------------------------------------------------


def read_calibration(path: Path) -> dict[str, float]:
    """The numbers of lines such as `width=2964` by name; matrices are left out."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    numbers: dict[str, float] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not value.strip().startswith("["):
            try:
                numbers[name.strip()] = float(value)
            except ValueError:
                raise DataError(f"{path}: '{line.strip()}' has no number; lines look like width=2964") from None
    return numbers
