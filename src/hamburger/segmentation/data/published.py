"""`voc`, `context` and `camvid`: published data sets in their usual layouts.

voc      PASCAL VOC 2012, 20 classes and background; label value 255 is the void border. `root` is `VOC2012`,
         `VOCdevkit` or its parent:

             JPEGImages/<id>.jpg                   SegmentationClass/<id>.png
             ImageSets/Segmentation/<split>.txt    SegmentationClassAug/<id>.png  (for trainaug: `ham data prepare voc`)

context  PASCAL-Context, 59 classes and background, on images of VOC 2010 (4,998 train, 5,105 val). Labels are PNGs with
         value 0 for background and 1 ... 59 for the classes in alphabetical order. `ham data prepare context` writes
         them from the official JSON; other toolboxes write the same. The 459-class .mat files are not read. `root` is
         `VOC2010`, `VOCdevkit` or its parent:

             JPEGImages/<id>.jpg    SegmentationClassContext/<id>.png    ImageSets/SegmentationContext/{train,val}.txt

camvid   Street scenes in 11 classes, SegNet's splits (367 train, 101 val, 233 test); label value 11 is void. Either
         `<split>/<id>.png` with `<split>annot/<id>.png`, as in SegNet (in `root` or `root/CamVid`), or
         `images/<split>/<id>.*` with `labels/<split>/<id>.png`. A `<split>.txt` next to them lists the images in order;
         without it, all images of the folder are used.

Subsets of `voc` and `context` may be flat: `images/<id>.*`, `labels/<id>.png` and `<split>.txt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hamburger.errors import DataError, OptionError, check_choice, check_flag
from hamburger.segmentation.data.base import ImageLabelPair, ImageLabelSet, datasets, list_pairs
from hamburger.training.datasets import check_root, select_classes
from hamburger.training.image_files import Colour, voc_palette

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
