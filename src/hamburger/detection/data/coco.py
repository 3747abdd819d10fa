"""`coco`: images and one JSON file of instances, in the layout of COCO and of the many tools that write it.

    annotations/instances_<split>.json     or annotations/<split>.json, or <split>.json
    <split>/...                            or images/<split>/..., images/..., or beside the folder of annotations

The JSON has `images` (id, file_name, width, height), `annotations` (id, image_id, category_id, bbox: left, top, width,
height, segmentation: polygons or run lengths, and perhaps area and iscrowd) and `categories` (id, name).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hamburger.detection.data.base import DetectionSet, Scene, detection_sets
from hamburger.detection.data.masks import Extent, find_extent, read_mask
from hamburger.errors import DataError, InputError, check_choice
from hamburger.training.datasets import Row, check_root, chosen, remembered, stamp, voc_palette
from hamburger.training.image_files import read_image

LAYOUT = "annotations/instances_<split>.json and a folder <split> of images"
POLICIES = ("refuse", "drop")
EMPTY = ("refuse", "keep")
OUTSIDE = 1.0  # pixels by which a box may reach beyond the image: files round
LEAST_OVERLAP = 0.3  # of a box and its mask: boxes of visible parts, or of rotated boxes, differ, and others are wrong
CORNERS = "a bbox is left, top, width and height, and this one looks like left, top, right, bottom"

Entry = dict[str, Any]


@detection_sets.register("coco")
class Coco(DetectionSet):
    """`classes`: names or numbers to detect, the rest is left out.   `broken`: "drop" leaves out annotations that are
    broken, of which the official files have some.   `empty`: "keep" takes images without any object."""

    name = "coco"

    def __init__(
        self,
        split: str = "train2017",
        *,
        root: Path,
        classes: Sequence[str | int] | str | None = None,
        broken: str = "refuse",
        empty: str = "refuse",
    ) -> None:
        check_choice(self.name, "broken", broken, POLICIES)
        check_choice(self.name, "empty", empty, EMPTY)
        root = check_root(self.name, Path(root), LAYOUT)
        self.split, self.empty = split, empty
        self.file = _first(root, split, ("annotations/instances_{}.json", "annotations/{}.json", "{}.json"))
        said = _read(self.file)
        categories = sorted(said["categories"], key=lambda category: (isinstance(category["id"], str), category["id"]))
        names = [str(category["name"]) for category in categories]
        numbers = chosen(self.name, names, classes)
        self.classes = tuple(names[number] for number in numbers)
        _once(self.file, "category id", [category["id"] for category in categories], "give each its own")
        _once(self.file, "class name", self.classes, "rename one, or choose by number with classes=0,1,...")
        self.palette = voc_palette(len(numbers) + 1)[1:]
        self.categories = {categories[number]["id"]: label for label, number in enumerate(numbers)}
        self.known = {category["id"] for category in categories}
        self.images: list[Entry] = said["images"]
        self.ids = [str(image["id"]) for image in self.images]
        self.folder = _image_folder(root, split, self.images)
        self.faulty: set[Any] = set()  # images with annotations that are broken
        self.others: set[Any] = set()  # and with sound ones of classes that nobody asked for
        self.found, self.objects = self._sorted(said["annotations"])
        self.dropped = len(self.found) if broken == "drop" else 0
        if broken == "drop":
            self.found = []

    def _sorted(self, annotations: Sequence[Entry]) -> tuple[list[str], dict[Any, list[Entry]]]:
        """What is wrong with annotations, and those that are sound by image."""
        images = {image["id"]: image for image in self.images}
        found, objects = [], defaultdict(list)
        before: dict[Any, Entry] = {}
        for annotation in annotations:
            id, image = annotation.get("id"), annotation.get("image_id")
            fault = fault_of(annotation, images, self.known)
            # ids alone may stand twice, as tools write them that do not care; the whole would be one object twice
            if fault is None and isinstance(id, Hashable) and before.setdefault(id, annotation) is not annotation:
                fault = "is listed twice" if before[id] == annotation else None
            if fault is not None:
                there = _among(image, images)
                self.faulty.update([image] if there else [])
                name = images[image]["file_name"] if there else "no image"
                found.append(f"{self.file}: annotation {id} ({name}): {fault}")
            elif annotation["category_id"] in self.categories:
                objects[image].append(annotation)
            else:
                self.others.add(image)
        return found, objects

    @cached_property
    def digest(self) -> str:  # type: ignore[override] # read only, as everywhere
        """By values: a file in another order of keys, or with other blanks, says the same."""
        said = hashlib.sha256()
        for image in self.images:
            objects = self.objects.get(image["id"], [])
            said.update(json.dumps([image["file_name"], size_of(image), len(objects)]).encode())
            for annotation in objects:
                for part in self._parts(annotation):
                    said.update(part)
        return said.hexdigest()

    def _parts(self, annotation: Entry) -> Iterator[bytes]:
        """All that is read of an annotation. As bytes of numbers: the text of them would take as long as reading it."""
        segmentation, area = annotation["segmentation"], annotation.get("area")
        label, crowd = self.categories[annotation["category_id"]], bool(annotation.get("iscrowd"))
        outlines = [segmentation["counts"]] if isinstance(segmentation, dict) else segmentation
        numbers = [label, crowd, -1 if area is None else area, *annotation["bbox"], *map(len, outlines)]
        yield np.array(numbers, np.float64).tobytes()
        for outline in outlines:
            yield outline.encode() if isinstance(outline, str) else np.asarray(outline, np.float64).tobytes()

    def path(self, index: int) -> Path:
        return self.folder / str(self.images[index]["file_name"])

    def __getitem__(self, index: int) -> Scene:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name}: there are {len(self)} images, index {index} is none of them")
        entry = self.images[index]
        image, size = read_image(self.path(index)), size_of(entry)
        if tuple(image.shape[-2:]) != size:
            raise DataError(self._mismatch(index, tuple(image.shape[-2:])))
        here = self.objects.get(entry["id"], [])
        masks = np.zeros((len(here), *size), np.bool_)
        boxes = np.zeros((len(here), 4), np.float32)
        for i, annotation in enumerate(here):
            masks[i] = read_mask(annotation["segmentation"], size)
            x, y, w, h = annotation["bbox"]
            boxes[i] = np.clip([x, y, x + w, y + h], 0, [size[1], size[0]] * 2)
        told = [annotation.get("area") for annotation in here]
        areas = [mask.sum() if area is None else area for area, mask in zip(told, masks, strict=True)]
        return Scene(
            image,
            torch.from_numpy(boxes),
            torch.tensor([self.categories[annotation["category_id"]] for annotation in here], dtype=torch.int64),
            torch.from_numpy(masks),
            torch.tensor(areas, dtype=torch.float64),
            torch.tensor([bool(annotation.get("iscrowd")) for annotation in here], dtype=torch.bool),
        )

    def problems(self, *, cache: bool = True, after: Callable[[], object] | None = None) -> list[str]:
        """Those of the JSON, then those of the image files, each of which is read."""
        twice = [f"{self.file}: image {id} is listed {n} times" for id, n in Counter(self.ids).items() if n > 1]
        bare = [] if self.empty == "keep" else [line for i in range(len(self)) if (line := self._bare(i)) is not None]
        key = f"coco {self.folder.absolute()} {self.split} {self.file.stat().st_mtime_ns}" if cache else None
        rows = remembered(self._look, [stamp([self.path(i)]) for i in range(len(self))], key=key, after=after)
        nothing = [] if self.ids else [f"{self.file}: lists no images"]
        return nothing + twice + self.found + bare + [row["problem"] for row in rows if row["problem"]]

    def _bare(self, index: int) -> str | None:
        """Why nothing is to be found in an image; None where something is, or where that is said in another place."""
        id, path = self.images[index]["id"], self.path(index)
        listed = id in self.faulty and not self.dropped  # its annotations are there, and named one by one
        if self.objects.get(id) or listed or not path.is_file():
            return None
        if id in self.faulty:
            why = "all annotations to be found in it are broken and left out"
        else:
            why = "has no annotation of the chosen classes" if id in self.others else "has no annotation"
        return f"{path}: {why}; empty=keep takes images without objects as they are"

    def _look(self, index: int) -> Row:
        try:
            size = tuple(read_image(self.path(index)).shape[-2:])
        except DataError as broken:
            return {"problem": str(broken)}
        return {"problem": None if size == size_of(self.images[index]) else self._mismatch(index, size)}

    def _mismatch(self, index: int, size: tuple[int, ...]) -> str:
        h, w = size_of(self.images[index])
        return f"{self.path(index)}: has {size[1]} x {size[0]} pixels, {self.file.name} says {w} x {h}"


def size_of(image: Entry) -> tuple[int, int]:
    """h, w"""
    return int(image["height"]), int(image["width"])


def fault_of(annotation: Entry, images: dict[Any, Entry], categories: set[Any]) -> str | None:
    """What is wrong with an annotation, told without drawing it; None where nothing is."""
    if not _among(annotation.get("image_id"), images):
        return f"image_id {annotation.get('image_id')} is no image of the file"
    if not _among(annotation.get("category_id"), categories):
        return f"category_id {annotation.get('category_id')} is no category of the file"
    h, w = size_of(images[annotation["image_id"]])
    box = annotation.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(v, (int, float)) for v in box):
        return f"bbox must be left, top, width and height, got {box!r}"
    if not np.isfinite(box).all() or box[2] <= 0 or box[3] <= 0:
        return f"bbox {box} has no area"
    if min(box[:2]) < -OUTSIDE or box[0] + box[2] > w + OUTSIDE or box[1] + box[3] > h + OUTSIDE:
        hint = f"; {CORNERS}" if box[0] < box[2] <= w and box[1] < box[3] <= h else ""
        return f"bbox {box} reaches outside the image of {w} x {h} pixels{hint}"
    area = annotation.get("area")
    if area is not None and not (isinstance(area, (int, float)) and 0 <= area < np.inf):
        return f"area must be a number of pixels, got {area!r}"
    crowd = annotation.get("iscrowd")
    if crowd is not None and not (isinstance(crowd, (int, float)) and crowd in (0, 1)):  # "0" would be true
        return f"iscrowd must be 0 or 1, got {crowd!r}"
    try:
        extent = find_extent(annotation.get("segmentation"), (h, w))
    except InputError as said:
        return str(said)
    return _apart(box, extent)


def _apart(box: Sequence[float], extent: Extent) -> str | None:
    """Whether a box is of something else than its mask: training takes the box of the mask, scores take `bbox`."""
    left, top, width, height = box
    overlap = _overlap((left, top, left + width, top + height), extent)
    corners = left < width and top < height and _overlap((left, top, width, height), extent) > 0.9
    if overlap >= (0.8 if corners else LEAST_OVERLAP):
        return None
    sides = " to ".join(", ".join(f"{side:g}" for side in corner) for corner in (extent[:2], extent[2:]))
    return f"bbox {box} hardly meets its segmentation, which goes from {sides}" + (f"; {CORNERS}" if corners else "")


def _overlap(a: Extent, b: Extent) -> float:
    """Shared area over joint area, each a pixel wider on every side: small ones are rounded too."""
    sides = [(min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + 2 * OUTSIDE) for i in (0, 1)]
    shared = max(0.0, sides[0]) * max(0.0, sides[1])
    areas = [(each[2] - each[0] + 2 * OUTSIDE) * (each[3] - each[1] + 2 * OUTSIDE) for each in (a, b)]
    return shared / (sum(areas) - shared)


def _among(id: Any, known: Collection[Any]) -> bool:
    return isinstance(id, Hashable) and id in known


def _once(file: Path, what: str, values: Sequence[Any], remedy: str) -> None:
    twice = [value for value, n in Counter(values).items() if n > 1]
    if twice:
        raise DataError(f"{file}: the {what} {twice[0]!r} stands for several categories; {remedy}")


def _first(root: Path, split: str, patterns: Sequence[str]) -> Path:
    paths = [root / pattern.format(split) for pattern in patterns]
    for path in paths:
        if path.is_file():
            return path
    raise DataError(f"coco: there is no {paths[0]}; {root} should hold {LAYOUT}")


def _image_folder(root: Path, split: str, images: Sequence[Entry]) -> Path:
    """Where the images are: the folder that has the first of them, or where it should be."""
    folders = [root / split, root / "images" / split, root / "images", root]
    names = [str(image["file_name"]) for image in images[:20]]
    return next((folder for folder in folders if any((folder / name).is_file() for name in names)), folders[0])


def _read(path: Path) -> dict[str, list[Entry]]:
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as broken:
        raise DataError(f"{path}: no readable JSON ({broken})") from None
    needed = {"images": ("id", "file_name", "width", "height"), "annotations": (), "categories": ("id", "name")}
    for part, keys in needed.items():
        entries = said.get(part) if isinstance(said, dict) else None
        if not isinstance(entries, list):
            raise DataError(f"{path}: has no list of '{part}'; a file of COCO instances has {', '.join(needed)}")
        for place, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise DataError(f"{path}: {part}[{place}] must be an object with named values, got {entry!r:.40}")
            lacking = [key for key in keys if key not in entry]
            if lacking:
                raise DataError(f"{path}: {part}[{place}] has no {lacking[0]}")
            wrong = [key for key in keys if not _sound(key, entry[key])]
            if wrong:
                raise DataError(f"{path}: {part}[{place}]: {wrong[0]} cannot be {entry[wrong[0]]!r}")
    return said


def _sound(key: str, value: Any) -> bool:
    if key in ("width", "height"):
        try:
            return int(value) > 0
        except (TypeError, ValueError, OverflowError):
            return False
    return isinstance(value, str) or (key != "file_name" and isinstance(value, (int, float)))
