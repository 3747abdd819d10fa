"""`context`: PASCAL-Context, 59 classes and background, on images of VOC 2010 (4,998 train, 5,105 val).

The labels are PNGs with value 0 for background and 1 ... 59 for the classes in alphabetical order, as the Detail API
gives them and as other toolboxes convert them:

    JPEGImages/<id>.jpg    SegmentationClassContext/<id>.png    ImageSets/SegmentationContext/{train,val}.txt

`root` is the folder that contains these (`VOC2010`), `VOCdevkit` or its parent. A flat layout is also read:
`images/<id>.*`, `labels/<id>.png`, `train.txt`, `val.txt`. The 459-class .mat files are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hamburger.errors import DataError, check_choice, check_flag
from hamburger.segmentation.data.base import datasets
from hamburger.segmentation.data.image_label_dataset import ImageIndex, ImageLabelPair, ImageLabelSet, read_ids
from hamburger.training.datasets import build_label_table, check_root, select_classes, voc_palette

CLASSES = (
    *("background", "aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle", "bird", "boat", "book", "bottle"),
    *("building", "bus", "cabinet", "car", "cat", "ceiling", "chair", "cloth", "computer", "cow", "cup", "curtain"),
    *("dog", "door", "fence", "floor", "flower", "food", "grass", "ground", "horse", "keyboard", "light", "motorbike"),
    *("mountain", "mouse", "person", "plate", "platform", "pottedplant", "road", "rock", "sheep", "shelves"),
    *("sidewalk", "sign", "sky", "snow", "sofa", "table", "track", "train", "tree", "truck", "tvmonitor", "wall"),
    *("water", "window", "wood"),
)
COUNTS = {"train": 4998, "val": 5105}
LAYOUTS = (
    "JPEGImages/, SegmentationClassContext/ and ImageSets/SegmentationContext/ (or images/, labels/ and <split>.txt)"
)


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
        check_choice("context", "split", split, COUNTS)
        check_flag("context", "background", background)
        ids = [i for i in select_classes("context", CLASSES, classes) if background or i != 0]
        palette = voc_palette(len(CLASSES))
        super().__init__(
            "context",
            split,
            find_pairs(find_tree(check_root("context", Path(root), LAYOUTS)), split),
            classes=[CLASSES[i] for i in ids],
            palette=[palette[i] for i in ids],
            table=build_label_table(ids, ignored=(i for i in range(len(CLASSES)) if i not in ids)),
        )


def find_tree(root: Path) -> Path:
    for tree in (root / part for part in ("", "VOC2010", "VOCdevkit/VOC2010")):
        if (tree / "SegmentationClassContext").is_dir() or (tree / "images").is_dir():
            return tree
    raise DataError(f"context: {root} does not contain PASCAL-Context; it must contain {LAYOUTS}")


def find_pairs(tree: Path, split: str) -> list[ImageLabelPair]:
    if (tree / "SegmentationClassContext").is_dir():
        ids = read_ids(tree / "ImageSets" / "SegmentationContext" / f"{split}.txt", ImageIndex(tree / "JPEGImages"))
        labels = tree / "SegmentationClassContext"
        return [ImageLabelPair(i, tree / "JPEGImages" / f"{i}.jpg", labels / f"{i}.png") for i in ids]
    images = ImageIndex(tree / "images")
    return [images.pair(i, tree / "labels") for i in read_ids(tree / f"{split}.txt", images)]
