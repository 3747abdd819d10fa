"""`voc`, `context` and `camvid`: published data sets in their usual layouts, and VOC's augmented training set.

voc      PASCAL VOC 2012, 20 classes and background; label value 255 is the void border. `root` is `VOC2012`,
         `VOCdevkit` or its parent:

             JPEGImages/<id>.jpg                   SegmentationClass/<id>.png
             ImageSets/Segmentation/<split>.txt    SegmentationClassAug/<id>.png  (for trainaug: `ham data prepare voc`)

context  PASCAL-Context, 59 classes and background, on images of VOC 2010 (4,998 train, 5,105 val). Labels are PNGs with
         value 0 for background and 1 ... 59 for the classes in alphabetical order, as the Detail API gives them and as
         other toolboxes convert them. The 459-class .mat files are not read. `root` is `VOC2010`, `VOCdevkit` or its
         parent:

             JPEGImages/<id>.jpg    SegmentationClassContext/<id>.png    ImageSets/SegmentationContext/{train,val}.txt

camvid   Street scenes in 11 classes, SegNet's splits (367 train, 101 val, 233 test); label value 11 is void. Either
         `<split>/<id>.png` with `<split>annot/<id>.png`, as in SegNet (in `root` or `root/CamVid`), or
         `images/<split>/<id>.*` with `labels/<split>/<id>.png`. A `<split>.txt` next to them lists the images in order;
         without it, all images of the folder are used.

Subsets of `voc` and `context` may be flat: `images/<id>.*`, `labels/<id>.png` and `<split>.txt`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hamburger.errors import DataError, OptionError, check_choice, check_flag
from hamburger.files import write_atomically
from hamburger.segmentation.data.base import ImageLabelPair, ImageLabelSet, datasets, list_pairs, read_ids
from hamburger.segmentation.data.sbd import read_sbd_label
from hamburger.training.datasets import check_root, join_problems, select_classes
from hamburger.training.image_files import Colour, encode_label_png, voc_palette
from hamburger.training.loader import prefetch

VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
CONTEXT_CLASSES = (
    *("background", "aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle", "bird", "boat", "book", "bottle"),
    *("building", "bus", "cabinet", "car", "cat", "ceiling", "chair", "cloth", "computer", "cow", "cup", "curtain"),
    *("dog", "door", "fence", "floor", "flower", "food", "grass", "ground", "horse", "keyboard", "light", "motorbike"),
    *("mountain", "mouse", "person", "plate", "platform", "pottedplant", "road", "rock", "sheep", "shelves"),
    *("sidewalk", "sign", "sky", "snow", "sofa", "table", "track", "train", "tree", "truck", "tvmonitor", "wall"),
    *("water", "window", "wood"),
)
CAMVID_CLASSES: dict[str, Colour] = {
    "sky": (128, 128, 128),
    "building": (128, 0, 0),
    "pole": (192, 192, 128),
    "road": (128, 64, 128),
    "pavement": (60, 40, 222),
    "tree": (128, 128, 0),
    "sign": (192, 128, 128),
    "fence": (64, 64, 128),
    "car": (64, 0, 128),
    "pedestrian": (64, 64, 0),
    "bicyclist": (0, 128, 192),
}
CAMVID_VOID = 11
VOC_SPLITS = ("train", "val", "trainval", "trainaug", "test")
VOC_LAYOUTS = "JPEGImages/, SegmentationClass/ and ImageSets/Segmentation/ (or images/, labels/ and <split>.txt)"
CONTEXT_LAYOUTS = (
    "JPEGImages/, SegmentationClassContext/ and ImageSets/SegmentationContext/ (or images/, labels/ and <split>.txt)"
)
CAMVID_LAYOUTS = "<split>/ and <split>annot/, or images/<split>/ and labels/<split>/"


@datasets.register("voc")
class VOC(ImageLabelSet):
    """`classes`: names or VOC ids of the classes to keep; pixels of all others become 255."""

    def __init__(self, split: str = "train", *, root: Path, classes: Sequence[str | int] | str | None = None) -> None:
        check_choice("voc", "split", split, VOC_SPLITS)
        pairs = _find_voc_pairs(find_voc(root), split)
        super().__init__("voc", split, pairs, classes=VOC_CLASSES, palette=voc_palette(len(VOC_CLASSES)), keep=classes)


def find_voc(root: Path) -> Path:
    """Return the folder with JPEGImages (or images): `root` or one of the usual places below."""
    below = ("", "VOC2012", "VOCdevkit/VOC2012", "VOCtrainval_11-May-2012/VOCdevkit/VOC2012")
    return _find_tree("voc", Path(root), below, "JPEGImages", VOC_LAYOUTS)


def _find_tree(name: str, root: Path, below: Sequence[str], official: str, layouts: str) -> Path:
    """Return the first place below `root` that has the `official` folder, or `images` of the flat layout."""
    check_root(name, root, layouts)
    for tree in (root / part for part in below):
        if (tree / official).is_dir() or (tree / "images").is_dir():
            return tree
    raise DataError(f"{name}: {root} does not contain this data set; it must contain {layouts}")


def _find_voc_pairs(tree: Path, split: str) -> list[ImageLabelPair]:
    if not (tree / "JPEGImages").is_dir():
        return list_pairs(tree / "images", tree / "labels", tree / f"{split}.txt")
    list_file = tree / "ImageSets" / "Segmentation" / f"{split}.txt"
    if split == "trainaug" and not list_file.exists():
        raise OptionError(
            f"voc: {list_file} is missing; build the augmented set from SBD with `ham data prepare voc --root {tree}`"
        )
    labels = tree / ("SegmentationClassAug" if split == "trainaug" else "SegmentationClass")
    pairs = list_pairs(tree / "JPEGImages", labels, list_file)
    return [pair._replace(label=None) for pair in pairs] if split == "test" else pairs


@datasets.register("context")
class PascalContext(ImageLabelSet):
    """`background=False`: ignore the background (255), the 59-class protocol; otherwise there are 60 classes.

    `classes`: names, or numbers among the 60, of the classes to keep; pixels of all others become 255.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        root: Path,
        background: bool = True,
        classes: Sequence[str | int] | str | None = None,
    ) -> None:
        check_choice("context", "split", split, ("train", "val"))
        check_flag("context", "background", background)
        below, official = ("", "VOC2010", "VOCdevkit/VOC2010"), "SegmentationClassContext"
        tree = _find_tree("context", Path(root), below, official, CONTEXT_LAYOUTS)
        if (tree / official).is_dir():
            lists = tree / "ImageSets" / "SegmentationContext"
            pairs = list_pairs(tree / "JPEGImages", tree / official, lists / f"{split}.txt")
        else:
            pairs = list_pairs(tree / "images", tree / "labels", tree / f"{split}.txt")
        keep = [i for i in select_classes("context", CONTEXT_CLASSES, classes) if background or i != 0]
        palette = voc_palette(len(CONTEXT_CLASSES))
        super().__init__("context", split, pairs, classes=CONTEXT_CLASSES, palette=palette, keep=keep)


@datasets.register("camvid")
class CamVid(ImageLabelSet):
    """`classes`: names or numbers of the classes to keep; pixels of all others become 255."""

    def __init__(self, split: str = "train", *, root: Path, classes: Sequence[str | int] | str | None = None) -> None:
        check_choice("camvid", "split", split, ("train", "val", "test"))
        super().__init__(
            "camvid",
            split,
            _find_camvid_pairs(check_root("camvid", Path(root), CAMVID_LAYOUTS), split),
            classes=list(CAMVID_CLASSES),
            palette=list(CAMVID_CLASSES.values()),
            keep=classes,
            void=[CAMVID_VOID],
        )


def _find_camvid_pairs(root: Path, split: str) -> list[ImageLabelPair]:
    for tree in (root, root / "CamVid"):
        for images, labels in ((split, f"{split}annot"), (f"images/{split}", f"labels/{split}")):
            if (tree / images).is_dir() and (tree / labels).is_dir():
                return list_pairs(tree / images, tree / labels, tree / f"{split}.txt", required=False)
    raise DataError(f"camvid: {root} has no split '{split}'; it must contain {CAMVID_LAYOUTS}")


# -- the augmented training set of VOC ---------------------------------------------------------------------------------
#
# `trainaug` = (SBD's train and val, and VOC's train) without VOC's val: 10,582 images. Labels are written to
# SegmentationClassAug; VOC's own are preferred (they have void borders, SBD's have none). The list is written last: if
# it exists, the set is complete. An interrupted run resumes.


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
    png = source.read_bytes() if is_png else encode_label_png(read_sbd_label(source), voc_palette(256))
    write_atomically(target / f"{id}.png", png)
