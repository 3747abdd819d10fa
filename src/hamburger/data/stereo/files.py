"""What all stereo sets in files share: the paths of a pair, how they are read, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from hamburger.data.images import SUFFIXES, read_grey, read_image
from hamburger.data.stereo.base import StereoSample, StereoSet
from hamburger.data.stereo.pfm import Floats
from hamburger.data.stereo.shrink import shrunk
from hamburger.data.stereo.truth import Mask, consistent, read_disparity
from hamburger.errors import DataError, check_count, did_you_mean

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
