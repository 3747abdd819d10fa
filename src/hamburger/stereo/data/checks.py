"""Everything that is wrong with a set of stereo pairs, found before training and listed at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hamburger.errors import DataError
from hamburger.stereo.data.base import UNKNOWN, StereoSet
from hamburger.stereo.data.files import Floats, StereoFiles, StereoFileSet, mismatch, read_calibration, read_disparity
from hamburger.training.datasets import Row, listing, remembered, stamp
from hamburger.training.image_files import read_grey, read_image


@dataclass
class StereoFindings:
    """`known`: share of the pixels with a disparity.   `largest`: disparity.   `sizes`: how many pairs are h x w."""

    problems: list[str]
    known: float = 0.0
    largest: float = 0.0
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)


def check_stereo(data: StereoSet, *, cache: bool = True) -> StereoFindings:
    """Findings of a sound set; a DataError with all problems, the first 20 in its message, of any other."""
    found = inspect_stereo(data, cache=cache)
    if found.problems:
        raise DataError(listing(data, found.problems), found.problems)
    return found


def inspect_stereo(data: StereoSet, *, cache: bool = True, after: Callable[[], object] | None = None) -> StereoFindings:
    """Problems, disparities and sizes. `after` is called once per pair, for progress."""
    if not len(data):
        return StereoFindings([f"{data.name}: split '{data.split}' is empty"])
    if isinstance(data, StereoFileSet):
        key = f"stereo {data.name} {data.pairs[0].left.parent.absolute()}" if cache else None
        stamps = [f"{pair.scale} {stamp(pair.paths())}" for pair in data.pairs]
        rows = remembered(lambda index: _one(data.pairs[index]), stamps, key=key, after=after)
    else:
        rows = [_generated(data, index, after) for index in range(len(data))]
    twice = [f"{id}: listed {n} times in split '{data.split}'" for id, n in Counter(data.ids).items() if n > 1]
    whole = [row for row in rows if "h" in row and "known" in row]  # left image and disparity could be read
    total = sum(row["h"] * row["w"] for row in whole)
    return StereoFindings(
        twice + [line for row in rows if row["problem"] for line in row["problem"].split("\n")],
        sum(row["known"] for row in whole) / max(1, total),
        max(row.get("largest", 0.0) for row in rows),
        dict(Counter((row["h"], row["w"]) for row in rows if "h" in row)),
    )


def _one(pair: StereoFiles) -> Row:
    """One pair's row: {problem, h, w, known, largest}."""
    row: Row = {"problem": None}
    problems: list[str] = []
    sizes: dict[Path, tuple[int, ...]] = {}

    def look(path: Path | None, read: Callable[[Path], tuple[int, ...]]) -> None:
        if path is None:
            return
        try:
            sizes[path] = read(path)
        except DataError as broken:
            problems.append(str(broken))

    def truth(path: Path) -> tuple[int, ...]:
        disparity = read_disparity(path, scale=pair.scale)
        row.update(_counts(disparity))
        if not row["known"]:
            problems.append(f"{path}: no pixel has a known disparity")
        return disparity.shape

    look(pair.left, _image_size)
    look(pair.right, _image_size)
    look(pair.disparity, truth)
    look(pair.disparity_right, lambda path: read_disparity(path, scale=pair.scale).shape)
    look(pair.mask, lambda path: read_grey(path).shape)
    look(pair.calibration, _calibrated_size)
    size = sizes.get(pair.left)
    if size is not None:
        row["h"], row["w"] = size
        problems += [mismatch(path, found, pair.left, size) for path, found in sizes.items() if found != size]
    if problems:
        row["problem"] = "\n".join(problems)
    return row


def _image_size(path: Path) -> tuple[int, ...]:
    return tuple(read_image(path).shape[1:])


def _calibrated_size(path: Path) -> tuple[int, ...]:
    found = read_calibration(path)
    if not {"height", "width"} <= found.keys():
        raise DataError(f"{path}: should say width= and height=")
    return int(found["height"]), int(found["width"])


def _generated(data: StereoSet, index: int, after: Callable[[], object] | None) -> Row:
    disparity = data.read(index, occlusions=False).disparity.numpy()
    if after is not None:
        after()
    return {"problem": None, "h": disparity.shape[0], "w": disparity.shape[1], **_counts(disparity)}


def _counts(disparity: Floats) -> Row:
    return {"known": int((disparity != UNKNOWN).sum()), "largest": float(disparity.max())}
