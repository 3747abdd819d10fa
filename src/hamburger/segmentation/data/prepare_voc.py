"""Prepare the augmented training set of VOC 2012: SBD labels for the images that VOC itself does not label.

`trainaug` = (SBD's train and val, and VOC's train) without VOC's val: 10,582 images. Labels are written to
SegmentationClassAug; VOC's own are preferred (they have void borders, SBD's have none). The list is written last: if it
exists, the set is complete. An interrupted run resumes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hamburger.errors import DataError
from hamburger.files import write_atomically
from hamburger.segmentation.data.base import read_ids
from hamburger.segmentation.data.published import VOC_CLASSES, find_voc
from hamburger.training.datasets import voc_palette
from hamburger.training.image_files import Bytes
from hamburger.training.loader import prefetch

EXPECTED: Mapping[str, int] = MappingProxyType({"trainaug": 10_582, "val": 1_449, "test": 1_456})
SBD_PLACES = ("", "dataset", "benchmark_RELEASE/dataset", "SBD", "sbd", "SBD/dataset", "SBD/benchmark_RELEASE/dataset")
SHOWN = 20


@dataclass(frozen=True)
class PreparedVOC:
    """`counts`: images per list, None if VOC's list is missing.   `notes`: messages for the user"""

    tree: Path
    counts: dict[str, int | None]
    from_voc: int
    from_sbd: int
    already: int
    notes: tuple[str, ...]


def prepare_voc(
    root: Path,
    sbd: Path | None = None,
    *,
    expected: Mapping[str, int] | None = EXPECTED,
    after: Callable[[int], object] | None = None,
    workers: int | None = None,
) -> PreparedVOC:
    """Build SegmentationClassAug and trainaug.txt in the tree at `root`, from SBD at `sbd` (or near `root`).

    `expected` are the required counts; None accepts any. `after` is called once per label with the total number to
    write. Missing files are all reported before anything is written.
    """
    tree, source = find_voc(root), find_sbd(Path(root), sbd)
    lists = tree / "ImageSets" / "Segmentation"
    train, val = read_ids(lists / "train.txt"), set(read_ids(lists / "val.txt"))
    ids = sorted(({*read_ids(source / "train.txt"), *read_ids(source / "val.txt"), *train}) - val)
    test = lists / "test.txt"
    counts = {"trainaug": len(ids), "val": len(val), "test": len(read_ids(test)) if test.is_file() else None}
    notes = check_counts(counts, expected)
    voc, target = tree / "SegmentationClass", tree / "SegmentationClassAug"
    labels = {i: voc / f"{i}.png" if (voc / f"{i}.png").is_file() else source / "cls" / f"{i}.mat" for i in ids}
    check_files([*labels.values(), *(tree / "JPEGImages" / f"{i}.jpg" for i in ids)])
    missing = [i for i in ids if not (target / f"{i}.png").is_file()]
    convert = partial(write_label, labels, target)
    threads = min(16, os.cpu_count() or 1) if workers is None else workers
    for _ in prefetch(convert, missing, workers=threads, depth=4 * max(1, threads)):
        if after is not None:
            after(len(missing))
    write_atomically(lists / "trainaug.txt", "".join(f"{i}\n" for i in ids).encode())
    from_voc = sum(path.suffix == ".png" for path in labels.values())
    return PreparedVOC(tree, counts, from_voc, len(ids) - from_voc, len(ids) - len(missing), notes)


def find_sbd(root: Path, sbd: Path | None) -> Path:
    """Return the folder with `cls/` and SBD's lists."""
    starts = [Path(sbd)] if sbd is not None else [root, root.parent, root.parent.parent]
    for place in (start / part for start in starts for part in SBD_PLACES):
        if (place / "cls").is_dir():
            return place
    where = f"in {sbd}" if sbd is not None else f"near {root}; pass its folder with --sbd"
    raise DataError(
        f"prepare voc: no SBD {where}; it is the folder (benchmark_RELEASE/dataset) with cls/ and train.txt"
    )


def check_counts(counts: Mapping[str, int | None], expected: Mapping[str, int] | None) -> tuple[str, ...]:
    """Return notes on missing lists; raise an error that names every list with a wrong number of images."""
    notes = tuple(f"no {name}.txt: its count was not checked" for name, count in counts.items() if count is None)
    wrong = [
        f"{name} has {counts[name]:,} images, not {number:,}"
        for name, number in (expected or {}).items()
        if counts.get(name) is not None and counts[name] != number
    ]
    if wrong:
        raise DataError(
            f"prepare voc: {'; '.join(wrong)}; VOC 2012 or SBD is incomplete or not the official one; nothing was "
            f"written (--any-counts, or expected=None, accepts any number)",
            wrong,
        )
    return notes


def check_files(paths: list[Path]) -> None:
    missing = [f"{path}: missing" for path in paths if not path.is_file()]
    if missing:
        more = [f"  ... and {len(missing) - SHOWN} more"] if len(missing) > SHOWN else []
        lines = [f"prepare voc: {len(missing)} files are missing; nothing was written", *missing[:SHOWN], *more]
        raise DataError("\n  ".join(lines), missing)


def write_label(labels: Mapping[str, Path], target: Path, id: str) -> None:
    source = labels[id]
    content = source.read_bytes() if source.suffix == ".png" else encode_label(read_mat(source))
    write_atomically(target / f"{id}.png", content)


def read_mat(path: Path) -> Bytes:
    """Return the classes (h w) of an SBD file."""
    from scipy.io import loadmat

    try:
        label = np.asarray(loadmat(path)["GTcls"]["Segmentation"][0, 0])
    except Exception as broken:  # scipy can raise anything for a damaged file
        raise DataError(f"{path}: not an SBD label, or damaged ({broken}); copy it again") from broken
    if label.ndim != 2 or not ((label < len(VOC_CLASSES)) | (label == 255)).all():
        raise DataError(f"{path}: label of shape {label.shape} with values up to {label.max()}; SBD has h w, 0 ... 20")
    return label.astype(np.uint8)


def encode_label(label: Bytes) -> bytes:
    """Return an index map as a PNG in VOC's colours."""
    from PIL import Image

    image = Image.fromarray(label)
    image.putpalette([channel for colour in voc_palette(256) for channel in colour])
    content = io.BytesIO()
    image.save(content, format="PNG")
    return content.getvalue()
