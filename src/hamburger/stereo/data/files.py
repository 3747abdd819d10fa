"""Stereo pairs in files: images, disparities as PNG, PFM or npz, and masks."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import DataError, check_count
from hamburger.files import open_regular
from hamburger.stereo.data import UNKNOWN, StereoSample, StereoSet, describe_disparity
from hamburger.training.datasets import Row, inspect_samples
from hamburger.training.image_files import read_grey, read_image
from hamburger.training.safe_files import MAX_PIXELS, check_pixels, describe, read_npy

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

SEEN_BY_BOTH = 255  # in a Middlebury mask: pixels that both cameras see; 128 are those that only the left one sees


class StereoFiles(NamedTuple):
    """Paths of a pair. The checks report files that are missing."""

    id: str
    left: Path
    right: Path
    disparity: Path
    scale: float = 1.0  # factor of disparities in PNGs
    disparity_right: Path | None = None  # if given, tells which pixels both cameras see
    mask: Path | None = None  # likewise


class StereoFileSet(StereoSet):
    """Pairs in files. `shrink`: an integer factor by which images and disparities are made smaller."""

    in_files = True

    def __init__(self, name: str, split: str, pairs: Sequence[StereoFiles], *, shrink: int = 1) -> None:
        check_count(name, "shrink", shrink, least=1)
        self.name, self.split, self.pairs, self.shrink = name, split, tuple(pairs), shrink
        self.ids = [pair.id for pair in self.pairs]

    def read(self, index: int, *, occlusions: bool = True) -> StereoSample:
        pair = self.pairs[index]
        left, right = read_image(pair.left), read_image(pair.right)
        disparity = read_disparity(pair.disparity, scale=pair.scale)

        def check_size(path: Path, shape: Sequence[int]) -> None:
            for problem in describe_mismatches(pair.left, left.shape[1:], {path: shape}):
                raise DataError(problem)

        check_size(pair.right, right.shape[1:])
        check_size(pair.disparity, disparity.shape)
        seen: Mask | None = None
        if occlusions and pair.mask is not None:
            mask = read_grey(pair.mask)
            check_size(pair.mask, mask.shape)
            seen = mask == SEEN_BY_BOTH
        elif occlusions and pair.disparity_right is not None:
            other = read_disparity(pair.disparity_right, scale=pair.scale)
            check_size(pair.disparity_right, other.shape)
            seen = find_consistent(disparity, other)
        truth, both = torch.from_numpy(disparity), None if seen is None else torch.from_numpy(seen)
        return shrink_sample(StereoSample(left, right, truth, both), self.shrink)

    def inspect(self, after: Callable[[], object] = lambda: None) -> list[Row]:
        return inspect_samples(lambda index: inspect_pair(self.pairs[index]), len(self), after)


def inspect_pair(pair: StereoFiles) -> Row:
    """Defects, size and disparities of one pair: {problem, h, w, known, largest}."""
    row: Row = {"problem": None}
    problems: list[str] = []
    shapes: dict[Path, Sequence[int]] = {}

    def read_shape(path: Path | None, read: Callable[[Path], Sequence[int]]) -> None:
        if path is not None:
            try:
                shapes[path] = read(path)
            except DataError as error:
                problems.append(str(error))

    def read_truth(path: Path) -> Sequence[int]:
        disparity = read_disparity(path, scale=pair.scale)
        described = describe_disparity(disparity)
        row.update(known=described["known"], largest=described["largest"])
        if not described["known"]:
            problems.append(f"{path}: no pixel has a known disparity")
        return disparity.shape

    for image in (pair.left, pair.right):
        read_shape(image, lambda path: read_image(path).shape[1:])
    read_shape(pair.disparity, read_truth)
    read_shape(pair.disparity_right, lambda path: read_disparity(path, scale=pair.scale).shape)
    read_shape(pair.mask, lambda path: read_grey(path).shape)
    if pair.left in shapes:
        row["h"], row["w"] = shapes[pair.left]
        problems += describe_mismatches(pair.left, shapes[pair.left], shapes)
    if problems:
        row["problem"] = "\n".join(problems)
    return row


def describe_mismatches(left: Path, size: Sequence[int], shapes: Mapping[Path, Sequence[int]]) -> list[str]:
    """A line for each file whose height and width differ from those of the left image."""
    return [
        f"{path}: {shape[1]} x {shape[0]} pixels, but the left image {left} has {size[1]} x {size[0]}"
        for path, shape in shapes.items()
        if tuple(shape) != tuple(size)
    ]


# -- disparity files ---------------------------------------------------------------------------------------------------

MAX_INCONSISTENCY = 1.0  # pixels by which two disparities of one point may differ


def read_disparity(path: Path, *, scale: float = 1.0) -> Floats:
    """The disparity of a PNG, PFM or .npz file in pixels, 0 where unknown.   ->   h w

    A PNG holds `scale` times the disparity. In every format 0 is unknown; in PFM and .npz so is infinity. NaN is
    unknown only in an .npz: a PFM has infinity for that, so a NaN in it is a mistake.
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
    values = None
    try:
        # not np.load, which allocates before it knows a size
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) == 1:
                if members[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError("a compression that numpy does not write")  # zipfile would not bound its output
                with archive.open(members[0]) as member:
                    values = read_npy(member, most=MAX_PIXELS)
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except Exception as error:  # a damaged archive can make zipfile and numpy raise anything
        raise DataError(f"{path}: not readable as .npz ({describe(error)})") from None
    if values is None or values.ndim != 2 or not np.issubdtype(values.dtype, np.floating):
        content = f"{len(members)} arrays" if values is None else f"{values.dtype} of shape {values.shape}"
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


def read_pfm(path: Path) -> Floats:
    """The content of a one-channel PFM file.   ->   h w, rows from the top down"""
    from PIL import Image

    try:
        with open_regular(path) as file, Image.open(file, formats=("PPM",)) as image:
            check_pixels(path, *image.size)
            if image.width * image.height * 4 > path.stat().st_size:
                raise ValueError("it ends early")
            mode, values = image.mode, np.array(image, np.float32)
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except DataError:
        raise
    except Exception as error:  # decoders raise any exception on a damaged file
        raise DataError(
            f"{path}: not a one-channel PFM file, or damaged ({describe(error)}); it should begin with Pf, width, "
            f"height and a scale that is not 0"
        ) from None
    if mode != "F":
        raise DataError(f"{path}: has mode {mode}; a disparity map is a PFM file with one channel (Pf)")
    return values


def encode_pfm(values: Floats) -> bytes:
    """The content of a little-endian PFM file.   h w"""
    height, width = values.shape
    return f"Pf\n{width} {height}\n-1\n".encode() + np.ascontiguousarray(values[::-1], dtype="<f4").tobytes()


# -- shrinking: for networks whose largest disparity is too small at full size ----------------------------------------

MAX_BLOCK_RANGE = 1.0  # pixels at full size: a block whose disparities differ by more contains an edge


def shrink_sample(sample: StereoSample, factor: int) -> StereoSample:
    """The pair at 1 / factor of its size: each block of factor x factor pixels becomes one.

    Colours are means, disparities are means divided by `factor`. A block with an unknown disparity or an edge is
    unknown; a block is seen only if the other camera sees all of it. Rows and columns that fill no block are left out.
    """
    if factor == 1:
        return sample
    blocks = _cut_blocks(sample.disparity, factor)
    low, high = blocks.amin(-1), blocks.amax(-1)
    whole = (low != UNKNOWN) & (high - low <= MAX_BLOCK_RANGE)
    disparity = torch.where(whole, blocks.mean(-1) / factor, UNKNOWN)
    seen = None if sample.seen is None else _cut_blocks(sample.seen, factor).all(-1)
    return StereoSample(_shrink_image(sample.left, factor), _shrink_image(sample.right, factor), disparity, seen)


def _cut_blocks(values: Tensor, factor: int) -> Tensor:
    """h w   ->   h/factor w/factor factor^2"""
    return values.unfold(0, factor, factor).unfold(1, factor, factor).flatten(2)


def _shrink_image(image: Tensor, factor: int) -> Tensor:
    return F.avg_pool2d(image.float(), factor).round().to(torch.uint8)
