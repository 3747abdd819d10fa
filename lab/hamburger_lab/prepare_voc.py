"""VOC's augmented training set, built from SBD (Semantic Boundaries Dataset), and results for VOC's server.

`trainaug` = (SBD's train and val, and VOC's train) without VOC's val: 10,582 images. Labels are written to
SegmentationClassAug; VOC's own are preferred (they have void borders, SBD's have none). The list is written last: if
it exists, the set is complete. An interrupted run resumes.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hamburger.errors import DataError, OptionError, shorten
from hamburger.files import read_bytes, read_json_object, write_atomically
from hamburger.inference.summary import SUMMARY
from hamburger.segmentation.data.base import read_ids
from hamburger.segmentation.data.published import VOC_CLASSES, find_voc
from hamburger.training.datasets import join_problems
from hamburger.training.image_files import Bytes, encode_label_png, read_indices, voc_palette
from hamburger.training.loader import prefetch
from hamburger.training.safe_files import MAX_FILE_BYTES, check_pixels, check_relative, describe

EXPECTED = {"trainaug": 10_582, "val": 1_449, "test": 1_456}
SBD_PLACES = ("", "dataset", "benchmark_RELEASE/dataset", "SBD", "sbd", "SBD/dataset", "SBD/benchmark_RELEASE/dataset")


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
    after: Callable[[int], object] = lambda total: None,
    workers: int | None = None,
) -> PreparedVOC:
    """Build SegmentationClassAug and trainaug.txt in the tree at `root`, from SBD at `sbd` (or near `root`).

    `expected` are the required counts; None accepts any. `after` is called once per label with the total number to
    write. Missing files are all reported before anything is written.
    """
    tree, source = find_voc(root), _find_sbd(Path(root), sbd)
    lists = tree / "ImageSets" / "Segmentation"
    train, val = read_ids(lists / "train.txt"), set(read_ids(lists / "val.txt"))
    ids = sorted({*read_ids(source / "train.txt"), *read_ids(source / "val.txt"), *train} - val)
    test = lists / "test.txt"
    counts = {"trainaug": len(ids), "val": len(val), "test": len(read_ids(test)) if test.is_file() else None}
    wrong = [
        f"{name} has {counts[name]:,} images, not {number:,}"
        for name, number in (expected or {}).items()
        if counts[name] not in (None, number)
    ]
    if wrong:
        raise DataError(
            f"prepare voc: {'; '.join(wrong)}; VOC 2012 or SBD is incomplete or not the official one; nothing was "
            f"written (--any-counts, or expected=None, accepts any number)",
            wrong,
        )
    notes = tuple(f"no {name}.txt: its count was not checked" for name, count in counts.items() if count is None)
    voc, target = tree / "SegmentationClass", tree / "SegmentationClassAug"
    labels = {i: voc / f"{i}.png" if (voc / f"{i}.png").is_file() else source / "cls" / f"{i}.mat" for i in ids}
    files = [*labels.values(), *(tree / "JPEGImages" / f"{i}.jpg" for i in ids)]
    if absent := [f"{path}: missing" for path in files if not path.is_file()]:
        heading = f"prepare voc: {len(absent)} files are missing; nothing was written"
        raise DataError(join_problems(heading, absent), absent)
    missing = [i for i in ids if not (target / f"{i}.png").is_file()]
    threads = min(16, os.cpu_count() or 1) if workers is None else workers
    for _ in prefetch(partial(write_label, labels, target), missing, workers=threads, depth=4 * max(1, threads)):
        after(len(missing))
    write_atomically(lists / "trainaug.txt", "".join(f"{i}\n" for i in ids).encode())
    from_voc = sum(path.suffix == ".png" for path in labels.values())
    return PreparedVOC(tree, counts, from_voc, len(ids) - from_voc, len(ids) - len(missing), notes)


def _find_sbd(root: Path, sbd: Path | None) -> Path:
    """Return the folder with `cls/` and SBD's lists."""
    starts = [Path(sbd)] if sbd is not None else [root, root.parent, root.parent.parent]
    for place in (start / part for start in starts for part in SBD_PLACES):
        if (place / "cls").is_dir():
            return place
    where = f"in {sbd}" if sbd is not None else f"near {root}; pass its folder with --sbd"
    raise DataError(
        f"prepare voc: no SBD {where}; it is the folder (benchmark_RELEASE/dataset) with cls/ and train.txt"
    )


def write_label(labels: Mapping[str, Path], target: Path, id: str) -> None:
    source = labels[id]
    is_png = source.suffix == ".png"
    png = read_bytes(source, MAX_FILE_BYTES) if is_png else encode_label_png(read_sbd_label(source), voc_palette(256))
    write_atomically(target / f"{id}.png", png)


# -- predictions as VOC's evaluation server expects them ---------------------------------------------------------------

SERVER_FOLDER = Path("results/VOC2012/Segmentation/comp6_test_cls")


def write_server_results(predicted: Path, out: Path) -> list[Path]:
    """Write the labels that `ham predict` left in the folder `predicted` with VOC's class ids; return the new paths."""
    call = "prepare voc-results"
    summary = read_json_object(predicted / SUMMARY, call)
    classes = summary.get("classes")
    if not isinstance(classes, list) or not set(map(str, classes)) <= set(VOC_CLASSES):
        raise OptionError(f"{call}: {predicted} must have labels of PASCAL VOC's classes (got {shorten(classes)})")
    values = np.array([VOC_CLASSES.index(name) for name in classes], np.uint8)
    try:
        rows = [
            (check_relative(call, Path(row["image"]).stem), check_relative(call, row["label"]))
            for row in summary["images"]
        ]
    except (KeyError, TypeError, AttributeError):
        raise OptionError(f"{call}: {predicted / SUMMARY} lists no images with labels; predict them again") from None
    ids = [id for id, _ in rows]
    if repeated := sorted(id for id, n in Counter(ids).items() if n > 1):
        raise OptionError(f"{call}: several images have the id {repeated[0]}; predict them into different folders")
    paths = [out / SERVER_FOLDER / f"{id}.png" for id in ids]
    for path, (_, name) in zip(paths, rows, strict=True):
        label = read_indices(predicted / name)
        if label.max(initial=0) >= len(values):
            raise DataError(f"{call}: {predicted / name} has values that are none of its {len(values)} classes")
        label = values[label]
        write_atomically(path, encode_label_png(label, voc_palette(256)))
    return paths


# -- SBD's label files: MATLAB 5 files with `GTcls.Segmentation`, and nothing else of them -----------------------------
#
# A file is a header of 128 bytes and data elements. An element is a tag (type and length, 8 bytes, or 4 bytes if the
# data fit into the other 4) and its data, padded to 8 bytes. A compressed element contains another one. An array is an
# element of elements: flags with its class, dimensions, name, and its values, or the arrays of its fields.


HEADER = 128
MAX_HEADER = 256  # bytes of a name or of dimensions, and fields of a struct
ORDERS = {b"IM": "<", b"MI": ">"}  # how the machine that wrote the file stores the 16 bits 'MI'
INT32, ARRAY, COMPRESSED = 5, 14, 15  # types of elements
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", INT32: "i4", 6: "u4", 7: "f4", 9: "f8"}
STRUCT = 2  # a class of arrays
VARIABLE, FIELD, LARGEST_CLASS = "GTcls", "Segmentation", 20


def read_sbd_label(path: Path) -> Bytes:
    """Return the classes (h w) of an SBD file; 255 is unlabelled."""
    content = read_bytes(path, MAX_FILE_BYTES)
    try:
        label = _find_label(content)
    except Exception as broken:  # a damaged file leads anywhere
        raise DataError(f"{path}: not an SBD label, or damaged ({describe(broken)}); copy it again") from None
    check_pixels(path, *label.shape)
    if not (((label >= 0) & (label <= LARGEST_CLASS)) | (label == 255)).all():
        raise DataError(f"{path}: label with values {label.min()} ... {label.max()}; SBD has 0 ... {LARGEST_CLASS}")
    return label.astype(np.uint8)


class Element(NamedTuple):
    type: int
    data: memoryview


def _split_elements(data: memoryview, order: str, *, inflate: bool = False) -> Iterator[Element]:
    """Yield the elements of a block; with `inflate`, compressed ones as what they contain."""
    place, left = 0, MAX_FILE_BYTES  # of all compressed elements together
    while place < len(data):
        tag, length = np.frombuffer(data[place : place + 8], f"{order}u4").tolist()
        start, type = place + 8, tag
        if tag >> 16:  # a short element: length and type share the first four bytes
            start, type, length = place + 4, tag & 0xFFFF, tag >> 16
        block = data[start : start + length]
        if len(block) != length or (start == place + 4 and length > 4):
            raise ValueError("an element reaches beyond its block")
        place = place + 8 if start == place + 4 else start + length + (-length % 8 if type != COMPRESSED else 0)
        if type == COMPRESSED and inflate:
            inflater = zlib.decompressobj()
            block = memoryview(inflater.decompress(block, left))
            left -= len(block)
            if inflater.unconsumed_tail or left <= 0:  # 0 would mean no limit
                raise ValueError(f"its elements are larger than {MAX_FILE_BYTES:,} bytes")
            yield from _split_elements(block, order)
        else:
            yield Element(type, block)


def _find_label(content: bytes) -> npt.NDArray[Any]:
    order = ORDERS[content[HEADER - 2 : HEADER]]
    for variable in _split_elements(memoryview(content)[HEADER:], order, inflate=True):
        kind, _, name, parts = _open_array(variable, order)
        if kind == STRUCT and name == VARIABLE:
            (_, size), (_, names) = islice(parts, 2)
            width = int(np.frombuffer(size, f"{order}i4")[0])
            if not 1 <= width <= MAX_HEADER or len(names) > MAX_HEADER * width:
                raise ValueError("the header of a struct is damaged")
            fields = [bytes(names[i : i + width]).split(b"\0")[0].decode() for i in range(0, len(names), width)]
            label = dict(zip(fields, parts, strict=False))[FIELD]
            _, (h, w), _, values = _open_array(label, order)
            ((type, data),) = islice(values, 1)
            return np.frombuffer(data, f"{order}{NUMBERS[type]}").reshape(w, h).T
    raise ValueError(f"it has no {VARIABLE}.{FIELD}")


def _open_array(array: Element, order: str) -> tuple[int, list[int], str, Iterator[Element]]:
    """Return class, dimensions and name of an array, and the elements that follow."""
    if array.type != ARRAY:
        raise ValueError(f"expected an array, found an element of type {array.type}")
    parts = _split_elements(array.data, order)
    flags, dimensions, name = (part.data for part in islice(parts, 3))
    if len(flags) != 8 or max(len(dimensions), len(name)) > MAX_HEADER:
        raise ValueError("the header of an array is damaged")
    shape = np.frombuffer(dimensions, f"{order}i4").tolist()
    if min(shape, default=0) < 0:
        raise ValueError("the header of an array is damaged")
    return int(np.frombuffer(flags, f"{order}u4")[0]) & 0xFF, shape, bytes(name).decode(), parts
