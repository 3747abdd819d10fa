"""Checks of a stereo set before training: all defects at once, disparities, image sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hamburger.errors import DataError
from hamburger.stereo.data.base import UNKNOWN, StereoSet
from hamburger.stereo.data.files import (
    Floats,
    StereoFiles,
    StereoFileSet,
    describe_mismatch,
    read_calibration,
    read_disparity,
)
from hamburger.training.datasets import Row, fingerprint_files, format_problems, run_cached_checks
from hamburger.training.image_files import read_grey, read_image


@dataclass
class StereoFindings:
    """What an inspection of a stereo set found."""

    problems: list[str]
    known: float = 0.0  # share of the pixels with a known disparity
    largest: float = 0.0  # disparity
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)  # number of pairs by (h, w)


def check_stereo(data: StereoSet, *, cache: bool = True) -> StereoFindings:
    """Findings of a set without defects; otherwise raise DataError with all problems, the first 20 in its message."""
    findings = inspect_stereo(data, cache=cache)
    if findings.problems:
        raise DataError(format_problems(data, findings.problems), findings.problems)
    return findings


def inspect_stereo(data: StereoSet, *, cache: bool = True, after: Callable[[], object] | None = None) -> StereoFindings:
    """Problems, disparities and sizes. `after` is called once per pair, for progress."""
    if not len(data):
        return StereoFindings([f"{data.name}: split '{data.split}' is empty"])
    if isinstance(data, StereoFileSet):
        key = f"stereo {data.name} {data.pairs[0].left.parent.absolute()}" if cache else None
        stamps = [f"{pair.scale} {fingerprint_files(pair.paths())}" for pair in data.pairs]
        rows = run_cached_checks(lambda index: _inspect_pair(data.pairs[index]), stamps, key=key, after=after)
    else:
        rows = [_inspect_generated(data, index, after) for index in range(len(data))]
    repeated = [f"{id}: listed {n} times in split '{data.split}'" for id, n in Counter(data.ids).items() if n > 1]
    readable = [row for row in rows if "h" in row and "known" in row]  # left image and disparity could be read
    total = sum(row["h"] * row["w"] for row in readable)
    return StereoFindings(
        repeated + [line for row in rows if row["problem"] for line in row["problem"].split("\n")],
        sum(row["known"] for row in readable) / max(1, total),
        max(row.get("largest", 0.0) for row in rows),
        dict(Counter((row["h"], row["w"]) for row in rows if "h" in row)),
    )


def _inspect_pair(pair: StereoFiles) -> Row:
    """Defects, size and disparities of one pair: {problem, h, w, known, largest}."""
    row: Row = {"problem": None}
    problems: list[str] = []
    sizes: dict[Path, tuple[int, ...]] = {}

    def read_size(path: Path | None, read: Callable[[Path], tuple[int, ...]]) -> None:
        if path is None:
            return
        try:
            sizes[path] = read(path)
        except DataError as error:
            problems.append(str(error))

    def read_truth(path: Path) -> tuple[int, ...]:
        disparity = read_disparity(path, scale=pair.scale)
        row.update(_summarise(disparity))
        if not row["known"]:
            problems.append(f"{path}: no pixel has a known disparity")
        return disparity.shape

    read_size(pair.left, _read_image_size)
    read_size(pair.right, _read_image_size)
    read_size(pair.disparity, read_truth)
    read_size(pair.disparity_right, lambda path: read_disparity(path, scale=pair.scale).shape)
    read_size(pair.mask, lambda path: read_grey(path).shape)
    read_size(pair.calibration, _read_calibrated_size)
    size = sizes.get(pair.left)
    if size is not None:
        row["h"], row["w"] = size
        problems += [describe_mismatch(path, found, pair.left, size) for path, found in sizes.items() if found != size]
    if problems:
        row["problem"] = "\n".join(problems)
    return row


def _read_image_size(path: Path) -> tuple[int, ...]:
    return tuple(read_image(path).shape[1:])


def _read_calibrated_size(path: Path) -> tuple[int, ...]:
    calibration = read_calibration(path)
    if not {"height", "width"} <= calibration.keys():
        raise DataError(f"{path}: has no width= and height=; add them or remove the file")
    return int(calibration["height"]), int(calibration["width"])


def _inspect_generated(data: StereoSet, index: int, after: Callable[[], object] | None) -> Row:
    disparity = data.read(index, occlusions=False).disparity.numpy()
    if after is not None:
        after()
    return {"problem": None, "h": disparity.shape[0], "w": disparity.shape[1], **_summarise(disparity)}


def _summarise(disparity: Floats) -> Row:
    return {"known": int((disparity != UNKNOWN).sum()), "largest": float(disparity.max())}
