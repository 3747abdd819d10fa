"""Check a whole data set before training, and list all problems at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hamburger.segmentation.data.base import ImageLabelSet, SegmentationSet
from hamburger.training.datasets import inspect_samples, join_names, raise_problems


@dataclass
class SegmentationFindings:
    """`pixels`: pixel count of each class, then of unlabelled pixels.   `sizes`: (h, w) -> number of images

    `notes`: what is suspicious, but can be trained on.
    """

    problems: list[str]
    pixels: list[int]
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def check_dataset(data: SegmentationSet, after: Callable[[], object] = lambda: None) -> SegmentationFindings:
    """Return the findings; raise a DataError with all problems if there are any (its message shows the first 20)."""
    findings = inspect_dataset(data, after=after)
    raise_problems(data, findings.problems)
    return findings


def inspect_dataset(data: SegmentationSet, *, after: Callable[[], object] = lambda: None) -> SegmentationFindings:
    """Return problems, pixel counts and image sizes. `after` is called once per sample, for progress."""
    no_pixels = [0] * (len(data.classes) + 1)
    if not len(data):
        return SegmentationFindings([f"{data.name}: split '{data.split}' is empty"], no_pixels)
    problems: list[str] = []
    if isinstance(data, ImageLabelSet):
        if not data.labelled:
            return SegmentationFindings([data.explain_unlabelled()], no_pixels)
        problems = [f"{id}: listed {n} times in split '{data.split}'" for id, n in Counter(data.ids).items() if n > 1]
        for pair in data.pairs:
            if pair.rivals:
                others = ", ".join(path.name for path in pair.rivals)
                problems.append(f"{pair.image}: has the same id as {others}; keep one of them or rename the others")
    rows = inspect_samples(lambda index: _inspect_sample(data, index), len(data), after)
    pixels = np.array([row.get("pixels", no_pixels) for row in rows]).sum(0).tolist()
    problems += [line for row in rows if row["problem"] for line in row["problem"].split("\n")]
    sizes = dict(Counter((row["h"], row["w"]) for row in rows if "h" in row))
    findings = SegmentationFindings(problems, pixels, sizes)
    if not any(row["problem"] for row in rows):
        _check_class_presence(data, findings)
    return findings


def _check_class_presence(data: SegmentationSet, findings: SegmentationFindings) -> None:
    """Add a problem where at most one class has pixels, and a note where others have none."""
    present = [name for name, count in zip(data.classes, findings.pixels, strict=False) if count]
    absent = [name for name in data.classes if name not in present]
    where = f"{data.name}: split '{data.split}'"
    if not present:
        findings.problems.append(f"{where}: no pixel belongs to any of its {len(data.classes)} classes")
    elif len(present) == 1 and absent:
        binary = data.name == "folder" and len(data.classes) == 2 and findings.pixels[-1]
        hint = "masks of the values 0 and 255 need --option binary=true (in training: --set data.options.binary=true)"
        findings.problems.append(
            f"{where}: every labelled pixel is '{present[0]}', so there is nothing to learn or to compare; "
            f"{hint if binary else 'check the values of the labels, and that 255 means unlabelled'}"
        )
    elif absent:
        findings.notes.append(f"{where}: no pixel of {len(absent)} classes: {join_names(absent)}")


def _inspect_sample(data: SegmentationSet, index: int) -> dict[str, Any]:
    """Return one sample's row: {problem, h, w, pixels}."""
    image, label, problems = data.inspect(index)
    row: dict[str, Any] = {"problem": "\n".join(problems) or None}
    if label is not None:
        counts = np.bincount(label.ravel(), minlength=256).tolist()
        row["pixels"] = [*counts[: len(data.classes)], counts[255]]
    if image is not None:
        row["h"], row["w"] = image.shape[1:]
    return row


def count_shared_images(one: SegmentationSet, other: SegmentationSet) -> int:
    """Return how many image files are in both sets."""
    if not (isinstance(one, ImageLabelSet) and isinstance(other, ImageLabelSet)):
        return 0
    return len(set(one.image_paths()) & set(other.image_paths()))


def format_sizes(sizes: Mapping[tuple[int, int], int]) -> str:
    """Return `480 x 360`, width first, or the range if sizes differ."""
    if not sizes:
        return "no size known"
    if len(sizes) == 1:
        ((h, w),) = sizes
        return f"{w} x {h}"
    heights, widths = zip(*sizes, strict=True)
    return f"{min(widths)} ... {max(widths)} x {min(heights)} ... {max(heights)}, {len(sizes)} sizes"
