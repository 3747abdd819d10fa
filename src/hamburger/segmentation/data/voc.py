"""`voc`: PASCAL VOC 2012 segmentation, 20 classes and background; label value 255 is the void border.

Two layouts are read. The official tree, where `root` is `VOC2012`, `VOCdevkit` or its parent:

    JPEGImages/<id>.jpg                   SegmentationClass/<id>.png
    ImageSets/Segmentation/<split>.txt    SegmentationClassAug/<id>.png    (for trainaug: `ham data prepare voc`)

and a flat one, for subsets of VOC: `images/<id>.*`, `labels/<id>.png` and `<split>.txt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hamburger.errors import DataError, OptionError, check_choice
from hamburger.segmentation.data.base import datasets
from hamburger.segmentation.data.image_label_dataset import ImageIndex, ImageLabelPair, ImageLabelSet, read_ids
from hamburger.training.datasets import build_label_table, check_root, select_classes, voc_palette

CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
SPLITS = ("train", "val", "trainval", "trainaug", "test")
LAYOUTS = "JPEGImages/, SegmentationClass/ and ImageSets/Segmentation/ (or images/, labels/ and <split>.txt)"


@datasets.register("voc")
class VOC(ImageLabelSet):
    """`classes`: names or VOC ids of the classes to keep; pixels of all others become 255."""

    def __init__(self, split: str = "train", *, root: Path, classes: Sequence[str | int] | str | None = None) -> None:
        check_choice("voc", "split", split, SPLITS)
        ids = select_classes("voc", CLASSES, classes)
        palette = voc_palette(len(CLASSES))
        super().__init__(
            "voc",
            split,
            find_pairs(find_tree(check_root("voc", Path(root), LAYOUTS)), split),
            classes=[CLASSES[i] for i in ids],
            palette=[palette[i] for i in ids],
            table=build_label_table(ids, ignored=(i for i in range(len(CLASSES)) if i not in ids)),
        )


def find_tree(root: Path) -> Path:
    """Return the folder with JPEGImages (or images): `root` or one of the usual places below."""
    below = ("", "VOC2012", "VOCdevkit/VOC2012", "VOCtrainval_11-May-2012/VOCdevkit/VOC2012")
    for tree in (root / part for part in below):
        if (tree / "JPEGImages").is_dir() or (tree / "images").is_dir():
            return tree
    raise DataError(f"voc: {root} does not contain VOC 2012; it must contain {LAYOUTS}")


def find_pairs(tree: Path, split: str) -> list[ImageLabelPair]:
    if not (tree / "JPEGImages").is_dir():
        images = ImageIndex(tree / "images")
        return [images.pair(i, tree / "labels") for i in read_ids(tree / f"{split}.txt", images)]
    list_file = tree / "ImageSets" / "Segmentation" / f"{split}.txt"
    if split == "trainaug" and not list_file.exists():
        raise OptionError(
            f"voc: {list_file} is missing; build the augmented set from SBD with `ham data prepare voc --root {tree}`"
        )
    ids = read_ids(list_file, ImageIndex(tree / "JPEGImages"))
    folder = tree / ("SegmentationClassAug" if split == "trainaug" else "SegmentationClass")
    labels = [None if split == "test" else folder / f"{i}.png" for i in ids]
    return [ImageLabelPair(i, tree / "JPEGImages" / f"{i}.jpg", label) for i, label in zip(ids, labels, strict=True)]
