"""PASCAL-Context's labels of 59 classes, built from the official annotations (`trainval_merged.json`).

The file lists images (image_id, file_name, height, width, phase) and regions (image_id, category_id, mask as COCO run
lengths). Later regions cover earlier ones, as in the Detail API. Labels are written to SegmentationClassContext, then
the lists `train.txt` and `val.txt`: if those exist, the set is complete. An interrupted run resumes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hamburger.detection.data.coco import read_mask
from hamburger.errors import DataError, InputError
from hamburger.files import read_bytes, write_atomically
from hamburger.training.datasets import check_root, join_problems
from hamburger.training.image_files import encode_label_png, voc_palette
from hamburger.training.loader import prefetch
from hamburger.training.safe_files import MAX_JSON_BYTES, check_pixels, check_relative

EXPECTED = {"train": 4_998, "val": 5_105}
FILE = "trainval_merged.json"
PLACES = ("", "VOC2010", "VOCdevkit/VOC2010")
# background and the 59 classes in alphabetical order, numbered among the 459 categories of PASCAL-Context
CATEGORY_IDS = (
    *(0, 2, 9, 18, 19, 22, 23, 25, 31, 33, 34, 44, 45, 46, 59, 65, 68, 72, 80, 85, 98, 104, 105, 113, 115, 144, 158),
    *(159, 162, 187, 189, 207, 220, 232, 258, 259, 260, 284, 295, 296, 308, 324, 326, 347, 349, 354, 355, 360, 366),
    *(368, 397, 415, 416, 420, 424, 427, 440, 445, 454, 458),
)
LABELS = {id: label for label, id in enumerate(CATEGORY_IDS)}

Entry = dict[str, Any]


@dataclass(frozen=True)
class PreparedContext:
    """`counts`: images per list.   `already`: labels that existed.   `notes`: messages for the user"""

    tree: Path
    counts: dict[str, int]
    already: int
    notes: tuple[str, ...]


def prepare_context(
    root: Path,
    annotations: Path | None = None,
    *,
    expected: Mapping[str, int] | None = EXPECTED,
    after: Callable[[int], object] = lambda total: None,
    workers: int | None = None,
) -> PreparedContext:
    """Write SegmentationClassContext and the two lists into the tree of VOC 2010 at `root`.

    `annotations` is by default `trainval_merged.json` in that tree. `expected` are the required counts; None accepts
    any. `after` is called once per label with the total number to write. Missing images are all reported before
    anything is written.
    """
    tree = _find_voc_2010(Path(root))
    images, regions, unknown = read_annotations(tree / FILE if annotations is None else Path(annotations))
    ids = {split: sorted(name for name, image in images.items() if image["phase"] == split) for split in EXPECTED}
    counts = {split: len(names) for split, names in ids.items()}
    wrong = [
        f"{name} has {counts[name]:,} images, not {n:,}" for name, n in (expected or {}).items() if counts[name] != n
    ]
    if wrong:
        raise DataError(
            f"prepare context: {'; '.join(wrong)}; the annotations are not the official ones; nothing was written "
            "(--any-counts, or expected=None, accepts any number)",
            wrong,
        )
    names = [name for listed in ids.values() for name in listed]
    paths = [tree / "JPEGImages" / f"{name}.jpg" for name in names]
    if absent := [f"{path}: missing" for path in paths if not path.is_file()]:
        raise DataError(
            join_problems(f"prepare context: {len(absent)} images are missing; nothing was written", absent), absent
        )
    target = tree / "SegmentationClassContext"
    left = [name for name in names if not (target / f"{name}.png").is_file()]
    threads = min(16, os.cpu_count() or 1) if workers is None else workers
    for _ in prefetch(partial(write_label, images, regions, target), left, workers=threads, depth=4 * max(1, threads)):
        after(len(left))
    for split, listed in ids.items():
        path = tree / "ImageSets" / "SegmentationContext" / f"{split}.txt"
        write_atomically(path, "".join(f"{name}\n" for name in listed).encode())
    notes = tuple(
        f"{n} objects of category {id} are none of the 59 classes and count as background" for id, n in unknown.items()
    )
    return PreparedContext(tree, counts, len(names) - len(left), notes)


def _find_voc_2010(root: Path) -> Path:
    check_root("prepare context", root, "JPEGImages/ of VOC 2010")
    for tree in (root / part for part in PLACES):
        if (tree / "JPEGImages").is_dir():
            return tree
    raise DataError(f"prepare context: {root} has no JPEGImages; pass VOC 2010 (VOCdevkit/VOC2010) with --root")


def read_annotations(path: Path) -> tuple[dict[str, Entry], dict[Any, list[Entry]], Counter[int]]:
    """Return images by name, regions by image id, and the number of objects of each category beyond the 59.

    Images and regions of other phases than train and val are left out.
    """
    if not path.is_file():
        raise DataError(f"prepare context: there is no file {path}; download {FILE} and name it with --annotations")
    try:
        content = json.loads(read_bytes(path, MAX_JSON_BYTES))
        images = {
            check_relative(str(path), str(Path(each["file_name"]).with_suffix(""))): each
            for each in content["images"]
            if each["phase"] in EXPECTED
        }
        for image in images.values():
            if min(int(image["width"]), int(image["height"])) < 1:
                raise ValueError
            check_pixels(path, int(image["width"]), int(image["height"]))
        regions: dict[Any, list[Entry]] = {image["image_id"]: [] for image in images.values()}
        unknown: Counter[int] = Counter()
        for region in content["annos_segmentation"]:
            id, _ = int(region["category_id"]), region["segmentation"]
            if region["image_id"] in regions:
                regions[region["image_id"]].append(region)
                unknown.update([id] * (id not in LABELS))
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise DataError(
            f"prepare context: {path} is not the annotations of PASCAL-Context; expected the official {FILE}"
        ) from None
    return images, regions, unknown


def write_label(images: Mapping[str, Entry], regions: Mapping[Any, Sequence[Entry]], target: Path, name: str) -> None:
    """Write the label PNG of one image."""
    size = int(images[name]["height"]), int(images[name]["width"])
    label = np.zeros(size, np.uint8)
    for region in regions[images[name]["image_id"]]:
        try:
            label[read_mask(region["segmentation"], size)] = LABELS.get(int(region["category_id"]), 0)
        except InputError as broken:
            raise DataError(f"prepare context: {name}: {broken}") from None
    write_atomically(target / f"{name}.png", encode_label_png(label, voc_palette(256)))
