"""`camvid`: street scenes in 11 classes, SegNet's splits (367 train, 101 val, 233 test); label value 11 is void.

Two layouts are read: `<split>/<id>.png` with `<split>annot/<id>.png`, as in SegNet (in `root` or `root/CamVid`), and
`images/<split>/<id>.*` with `labels/<split>/<id>.png`. A `<split>.txt` next to them lists the images in order; without
it, all images of the folder are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hamburger.errors import DataError, check_choice
from hamburger.segmentation.data.base import datasets
from hamburger.segmentation.data.image_label_dataset import (
    ImageIndex,
    ImageLabelPair,
    ImageLabelSet,
    list_ids,
    read_ids,
)
from hamburger.training.datasets import Colour, build_label_table, check_root, select_classes

CLASSES: dict[str, Colour] = {
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
VOID = 11
SPLITS = ("train", "val", "test")
LAYOUTS = "<split>/ and <split>annot/, or images/<split>/ and labels/<split>/"


@datasets.register("camvid")
class CamVid(ImageLabelSet):
    """`classes`: names or numbers of the classes to keep; pixels of all others become 255."""

    def __init__(self, split: str = "train", *, root: Path, classes: Sequence[str | int] | str | None = None) -> None:
        check_choice("camvid", "split", split, SPLITS)
        names = list(CLASSES)
        ids = select_classes("camvid", names, classes)
        super().__init__(
            "camvid",
            split,
            find_pairs(check_root("camvid", Path(root), LAYOUTS), split),
            classes=[names[i] for i in ids],
            palette=[CLASSES[names[i]] for i in ids],
            table=build_label_table(ids, ignored=(VOID, *(i for i in range(len(names)) if i not in ids))),
        )


def find_pairs(root: Path, split: str) -> list[ImageLabelPair]:
    for tree in (root, root / "CamVid"):
        for images, labels in (
            (tree / split, tree / f"{split}annot"),
            (tree / "images" / split, tree / "labels" / split),
        ):
            if images.is_dir() and labels.is_dir():
                list_file = tree / f"{split}.txt"
                index = ImageIndex(images)
                ids = read_ids(list_file, index) if list_file.is_file() else list_ids(images)
                return [index.pair(i, labels) for i in ids]
    raise DataError(f"camvid: {root} has no split '{split}'; it must contain {LAYOUTS}")
