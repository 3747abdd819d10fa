"""`folder`: a person's own images and labels.

    classes.txt                            one class a line, in the order of the label values: `road`, or with a colour
                                           `road 128 64 128`; lines that begin with # are skipped
    images/<id>.jpg|png|webp               labels/<id>.png                and train.txt, val.txt: lists of ids
    images/<split>/...                     labels/<split>/...             or a folder for each split
    <split>/images/...                     <split>/labels/...             or the other way round

Labels are index maps: grey levels or palette indices 0 ... k - 1, and 255 where unlabelled. If every class has a colour
in classes.txt, labels may also be RGB images in those colours; `ignore_colour` then names the one for unlabelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hamburger.errors import DataError, OptionError
from hamburger.segmentation.data.base import datasets
from hamburger.segmentation.data.image_label_dataset import (
    ImageIndex,
    ImageLabelPair,
    ImageLabelSet,
    list_ids,
    read_classes,
    read_ids,
)
from hamburger.training.datasets import OUTSIDE, check_root, chosen, table_of, voc_palette
from hamburger.training.image_files import Bytes, read_colours, read_indices, read_mode
from hamburger.training.packed_images import IGNORE, Colour

LAYOUTS = "classes.txt, images/ and labels/ (both with a folder a split, or train.txt and val.txt beside)"


@datasets.register("folder")
class LabelFolder(ImageLabelSet):
    """`classes`: names or numbers to score, the rest is 255.   `ignore`: further label value(s) that mean unlabelled.

    `remap`: from values in index maps to class numbers (255: unlabelled), where the files do not count 0 ... k - 1;
    values that it does not name are then errors.   `ignore_colour`: red, green, blue of unlabelled, in RGB labels.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        root: Path,
        classes: Sequence[str | int] | str | None = None,
        ignore: int | Sequence[int] = IGNORE,
        remap: Mapping[int | str, int] | None = None,
        ignore_colour: Sequence[int] | None = None,
    ) -> None:
        root = check_root("folder", Path(root), LAYOUTS)
        names, colours = read_classes(root / "classes.txt")
        ids = chosen("folder", names, classes)
        default = voc_palette(len(names))
        palette = [colours[name] or default[i] for i, name in enumerate(names)]
        table = table_of(ids, ignored=(i for i in range(len(names)) if i not in ids))
        self.colours = build_colour_table([colours[name] for name in names], ignore_colour)
        self.remapped = remap is not None
        if remap is not None:
            table = table[build_remap_table(remap, len(names))]
        for value in [ignore] if isinstance(ignore, int) else ignore:
            if not 0 <= value <= IGNORE or table[value] < OUTSIDE:
                raise OptionError(
                    f"folder: ignore must be label values 0 ... {IGNORE} that are no class, got {value!r}; to leave a "
                    f"class out, name the others in classes="
                )
            table[value] = IGNORE
        super().__init__(
            "folder",
            split,
            find_pairs(root, split),
            classes=[names[i] for i in ids],
            palette=[palette[i] for i in ids],
            table=table,
        )

    def meaning(self) -> str:
        return super().meaning() + repr((self.colours, self.remapped))

    def read_raw(self, index: int) -> Bytes:
        path = self.label_path(index)
        if read_mode(path) not in ("RGB", "RGBA"):
            return read_indices(path)
        if self.remapped:
            raise DataError(f"{path}: a label in colours; remap= is for index maps, classes.txt maps colours")
        if self.colours is None:
            raise DataError(
                f"{path}: a label in colours, but not every class has a colour in classes.txt; add them as "
                f"`name red green blue`, or save the label as an index map"
            )
        return read_colour_label(path, self.colours)


def find_pairs(root: Path, split: str) -> list[ImageLabelPair]:
    images, labels, listed = find_folders(root, split)
    found = ImageIndex(images)
    ids = read_ids(listed, found) if listed.is_file() else list_ids(images)
    return [found.pair(i, labels) for i in ids]


def find_folders(root: Path, split: str) -> tuple[Path, Path, Path]:
    """Images, labels, and the list of ids, which may be missing where the split has folders of its own."""
    listed = root / f"{split}.txt"
    for images, labels in (
        (root / "images" / split, root / "labels" / split),
        (root / split / "images", root / split / "labels"),
    ):
        if images.is_dir():
            if not labels.is_dir():
                raise DataError(f"folder: there is no folder {labels} for the labels of {images}")
            return images, labels, listed
    for part in (root / "images", root / "labels"):
        if not part.is_dir():
            raise DataError(f"folder: there is no folder {part}; {root} should hold {LAYOUTS}")
    if not listed.is_file():
        raise DataError(
            f"folder: {root} does not say which images are '{split}'; put their ids into {listed}, one a line, or move "
            f"them to {root / 'images' / split} and {root / 'labels' / split}"
        )
    return root / "images", root / "labels", listed


def build_remap_table(remap: Mapping[int | str, int], k: int) -> Bytes:
    """256 entries, from file value to class number; JSON makes keys strings, so that both are taken."""
    table = np.full(256, OUTSIDE, np.uint8)
    table[IGNORE] = IGNORE
    for key, value in remap.items():
        fits = (
            str(key).isdecimal() and int(key) <= 255 and isinstance(value, int) and (0 <= value < k or value == IGNORE)
        )
        if not fits:
            raise OptionError(
                f"folder: remap goes from label values 0 ... 255 to classes 0 ... {k - 1} or {IGNORE}, "
                f"got {key!r}: {value!r}"
            )
        table[int(key)] = value
    return table


def build_colour_table(colours: Sequence[Colour | None], ignored: Sequence[int] | None) -> dict[int, int] | None:
    """From packed colour to class number, where all classes have a colour."""
    known = [colour for colour in colours if colour is not None]
    if len(known) < len(colours):
        return None
    table = {pack_colour(colour): i for i, colour in enumerate(known)}
    if len(table) < len(known):
        raise DataError("folder: two classes of classes.txt have the same colour")
    if ignored is not None:
        if len(ignored) != 3 or pack_colour(ignored) in table:
            raise OptionError(f"folder: ignore_colour must be three numbers and no class's colour, got {ignored!r}")
        table[pack_colour(ignored)] = IGNORE
    return table


def pack_colour(colour: Sequence[int]) -> int:
    r, g, b = colour
    return (r << 16) | (g << 8) | b


def read_colour_label(path: Path, table: Mapping[int, int]) -> Bytes:
    """h w, class numbers of a label in colours."""
    rgb = read_colours(path).astype(np.int64)
    packed = (rgb[..., 0] << 16) | (rgb[..., 1] << 8) | rgb[..., 2]
    colours, where = np.unique(packed, return_inverse=True)
    unknown = [colour for colour in colours.tolist() if colour not in table]
    if unknown:
        first = ", ".join(f"{c >> 16} {c >> 8 & 255} {c & 255}" for c in unknown[:3])
        raise DataError(
            f"{path}: {len(unknown)} colours that no class has ({first}); classes.txt gives the colours, "
            f"ignore_colour= the one that means unlabelled"
        )
    return np.array([table[colour] for colour in colours.tolist()], np.uint8)[where].reshape(packed.shape)
