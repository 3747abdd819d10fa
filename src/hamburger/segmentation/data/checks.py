"""Check a whole data set before training, and list all problems at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hamburger.errors import DataError
from hamburger.segmentation.data.base import SegmentationSet
from hamburger.segmentation.data.image_label_dataset import ImageLabelPair, ImageLabelSet
from hamburger.training.datasets import OUTSIDE, fingerprint_files, format_problems, run_cached_checks

if TYPE_CHECKING:
    from rich.table import Table


OTHER_SUFFIXES = (".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


@dataclass
class SegmentationFindings:
    """`pixels`: pixel count of each class, then of unlabelled pixels.   `sizes`: (h, w) -> number of images"""

    problems: list[str]
    pixels: list[int]
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)


def check_dataset(
    data: SegmentationSet, *, cache: bool = True, after: Callable[[], object] | None = None
) -> SegmentationFindings:
    """Return the findings; raise a DataError with all problems if there are any (its message shows the first 20)."""
    findings = inspect_dataset(data, cache=cache, after=after)
    if findings.problems:
        raise DataError(format_problems(data, findings.problems), findings.problems)
    return findings


def inspect_dataset(
    data: SegmentationSet, *, cache: bool = True, after: Callable[[], object] | None = None
) -> SegmentationFindings:
    """Return problems, pixel counts and image sizes. `after` is called once per sample, for progress."""
    if not len(data):
        return SegmentationFindings([f"{data.name}: split '{data.split}' is empty"], [0] * (len(data.classes) + 1))
    if isinstance(data, ImageLabelSet):
        if not data.labelled:
            return SegmentationFindings([_explain_unlabelled(data)], [0] * (len(data.classes) + 1))
        return _inspect_files(data, cache, after)
    return _merge(data, [_inspect_generated(data, i, after) for i in range(len(data))], data.problems())


def _inspect_files(data: ImageLabelSet, cache: bool, after: Callable[[], object] | None) -> SegmentationFindings:
    # cached per set, split and choice of classes
    key = f"{data.pairs[0].image.parent.absolute()} {data.meaning()}" if cache else None
    fingerprints = [fingerprint_files((pair.image, pair.label)) for pair in data.pairs]
    rows = run_cached_checks(lambda index: _inspect_sample(data, index), fingerprints, key=key, after=after)
    repeated = [f"{id}: listed {n} times in split '{data.split}'" for id, n in Counter(data.ids).items() if n > 1]
    return _merge(data, rows, repeated + [_explain_ambiguous(pair) for pair in data.pairs if pair.rivals])


def _inspect_sample(data: ImageLabelSet, index: int) -> dict[str, Any]:
    """Return one sample's row: {problem, h, w, pixels}."""
    row: dict[str, Any] = {"problem": None}
    problems: list[str] = []
    size = shape = None
    try:
        size = tuple(data.read_image(index).shape[-2:])
    except DataError as broken:
        problems.append(str(broken))
    try:
        _check_suffix(data.label_path(index))
        raw = data.read_raw(index)
        shape = raw.shape
        label = data.table[raw]
        if (label == OUTSIDE).any():
            problems.append(data.explain_outside(index, raw))
        row["pixels"] = _count_pixels(label, len(data.classes))
    except DataError as broken:
        problems.append(str(broken))
    if size and shape and size != shape:
        problems.append(data.explain_mismatch(index, size, shape))
    if problems:
        row["problem"] = "\n".join(problems)
    if size:
        row["h"], row["w"] = size
    return row


def _check_suffix(label: Path) -> None:
    if label.is_file():
        return
    for other in (label.with_name(f"{label.stem}{suffix}") for suffix in OTHER_SUFFIXES):
        if other.is_file():
            raise DataError(f"{label}: missing, but {other.name} exists; convert labels to PNG, which is lossless")


def _explain_ambiguous(pair: ImageLabelPair) -> str:
    others = ", ".join(path.name for path in pair.rivals)
    return f"{pair.image}: has the same id as {others}; keep one of them or rename the others"


def count_shared_images(one: SegmentationSet, other: SegmentationSet) -> int:
    """Return how many image files are in both sets."""
    if not (isinstance(one, ImageLabelSet) and isinstance(other, ImageLabelSet)):
        return 0
    return len(set(one.image_paths()) & set(other.image_paths()))


def _inspect_generated(data: SegmentationSet, index: int, after: Callable[[], object] | None) -> dict[str, Any]:
    image, label = data[index]
    if after is not None:
        after()
    h, w = image.shape[-2:]
    return {"problem": None, "h": h, "w": w, "pixels": _count_pixels(label.numpy(), len(data.classes))}


def _count_pixels(label: Any, k: int) -> list[int]:
    counts = np.bincount(label.ravel(), minlength=256)
    return [*counts[:k].tolist(), int(counts[255])]


def _merge(data: SegmentationSet, rows: list[dict[str, Any]], problems: list[str]) -> SegmentationFindings:
    sample_problems = [line for row in rows if row["problem"] for line in row["problem"].split("\n")]
    pixels = np.array([row.get("pixels", [0] * (len(data.classes) + 1)) for row in rows]).sum(0).tolist()
    if not sample_problems and not sum(pixels[:-1]):
        sample_problems.append(
            f"{data.name}: no pixel of split '{data.split}' belongs to any of its {len(data.classes)} classes"
        )
    sizes = dict(Counter((row["h"], row["w"]) for row in rows if "h" in row))
    return SegmentationFindings(problems + sample_problems, pixels, sizes)


def _explain_unlabelled(data: ImageLabelSet) -> str:
    missing = next(i for i, pair in enumerate(data.pairs) if pair.label is None)
    try:
        data.label_path(missing)
    except DataError as error:
        return str(error)
    raise AssertionError("a pair without a label has no label path")


# -- printing ----------------------------------------------------------------------------------------------------------


def build_class_table(data: SegmentationSet, findings: SegmentationFindings) -> Table:
    """Return a table of the classes with their share of all pixels."""
    from rich.table import Table

    table = Table()
    for heading in ("class", "name", "share"):
        table.add_column(heading, justify="left" if heading == "name" else "right")
    total = max(1, sum(findings.pixels))
    for i, (name, pixels) in enumerate(zip(data.classes, findings.pixels, strict=False)):
        table.add_row(str(i), name, f"{pixels / total:.2%}" if pixels else "none")
    table.add_row("255", "unlabelled", f"{findings.pixels[-1] / total:.2%}")
    return table


def format_heading(data: SegmentationSet, findings: SegmentationFindings) -> str:
    return f"{data.name}, {data.split}: {len(data):,} images, {format_sizes(findings.sizes)}"


def format_sizes(sizes: Mapping[tuple[int, int], int]) -> str:
    """Return `480 x 360`, width first, or the range if sizes differ."""
    if not sizes:
        return "no size known"
    if len(sizes) == 1:
        ((h, w),) = sizes
        return f"{w} x {h}"
    heights, widths = zip(*sizes, strict=True)
    return f"{min(widths)} ... {max(widths)} x {min(heights)} ... {max(heights)}, {len(sizes)} sizes"
