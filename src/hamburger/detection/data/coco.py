"""`coco`: images and one JSON file of instances, in the layout of COCO and of the many tools that write it.

    annotations/instances_<split>.json     or annotations/<split>.json, or <split>.json
    <split>/...                            or images/<split>/..., images/..., or the folder itself

The JSON has `images` (id, file_name, width, height), `annotations` (id, image_id, category_id, bbox: left, top, width,
height, segmentation: polygons or an RLE, optionally area and iscrowd) and `categories` (id, name).
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
from hamburger.training.datasets import (
    Row,
    check_root,
    fingerprint_files,
    run_cached_checks,
    select_classes,
    voc_palette,
)
from hamburger.training.image_files import read_image

LAYOUT = "annotations/instances_<split>.json and a folder <split> of images"
BROKEN_POLICIES = ("refuse", "drop")
EMPTY_POLICIES = ("refuse", "keep")
TOLERANCE = 1.0  # pixels by which a box may reach beyond the image, since files round
LARGEST_NUMBER = 1e18  # of a box or an area: a larger number is a mistake
MIN_OVERLAP = 0.3  # of a box and its mask: they may differ (boxes of visible parts, of rotated boxes), but not more
CORNERS_HINT = "a bbox is left, top, width and height, but this one looks like left, top, right, bottom"

Entry = dict[str, Any]


@detection_sets.register("coco")
class CocoSet(DetectionSet):
    """One split of a set in COCO's layout.

    - `classes`: names or numbers of the classes to detect; annotations of others are left out
    - `broken`: "drop" leaves out invalid annotations, of which the official files have some
    - `empty`: "keep" accepts images without any object
    """

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
        check_choice(self.name, "broken", broken, BROKEN_POLICIES)
        check_choice(self.name, "empty", empty, EMPTY_POLICIES)
        root = check_root(self.name, Path(root), LAYOUT)
        self.split, self.empty = split, empty
        self.file = _find_file(root, split, ("annotations/instances_{}.json", "annotations/{}.json", "{}.json"))
        content = _read_json(self.file)
        categories = sorted(content["categories"], key=lambda each: (isinstance(each["id"], str), each["id"]))
        names = [str(category["name"]) for category in categories]
        numbers = select_classes(self.name, names, classes)
        self.classes = tuple(names[number] for number in numbers)
        _check_unique(self.file, "category id", [each["id"] for each in categories], "give each a different one")
        _check_unique(self.file, "class name", self.classes, "rename one, or choose by number with classes=0,1,...")
        self.palette = voc_palette(len(numbers) + 1)[1:]
        self.categories = {categories[number]["id"]: label for label, number in enumerate(numbers)}
        self.known = {category["id"] for category in categories}
        self.images: list[Entry] = content["images"]
        self.ids = [str(image["id"]) for image in self.images]
        self.folder = _find_image_folder(root, split, self.images)
        self.faulty: set[Any] = set()  # ids of images with invalid annotations
        self.others: set[Any] = set()  # ids of images with valid annotations of classes that are not chosen
        self.faults, self.objects = self._sort_annotations(content["annotations"])
        self.dropped = len(self.faults) if broken == "drop" else 0
        if broken == "drop":
            self.faults = []

    def _sort_annotations(self, annotations: Sequence[Entry]) -> tuple[list[str], dict[Any, list[Entry]]]:
        """What is wrong with annotations, and the valid ones of the chosen classes by image id."""
        images = {image["id"]: image for image in self.images}
        faults, objects = [], defaultdict(list)
        first_by_id: dict[Any, Entry] = {}
        for annotation in annotations:
            id, image = annotation.get("id"), annotation.get("image_id")
            fault = find_fault(annotation, images, self.known)
            # some tools repeat ids; only if the whole annotation is repeated would one object count twice
            if fault is None and isinstance(id, Hashable):
                first = first_by_id.setdefault(id, annotation)
                if first is not annotation and first == annotation:
                    fault = "is listed twice"
            if fault is not None:
                name = "no image"
                if _is_known(image, images):
                    self.faulty.add(image)
                    name = images[image]["file_name"]
                faults.append(f"{self.file}: annotation {id} ({name}): {fault}")
            elif annotation["category_id"] in self.categories:
                objects[image].append(annotation)
            else:
                self.others.add(image)
        return faults, objects

    @cached_property
    def digest(self) -> str:  # type: ignore[override] # read only
        """A hash of the values: the order of keys and white space do not change it."""
        digest = hashlib.sha256()
        for image in self.images:
            objects = self.objects.get(image["id"], [])
            digest.update(json.dumps([image["file_name"], read_size(image), len(objects)]).encode())
            for annotation in objects:
                for part in self._annotation_bytes(annotation):
                    digest.update(part)
        return digest.hexdigest()

    def _annotation_bytes(self, annotation: Entry) -> Iterator[bytes]:
        """Everything that is read of an annotation, as binary numbers, since formatting them would be slow."""
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
            raise IndexError(f"{self.name}: index {index} is out of range; there are {len(self)} images")
        entry = self.images[index]
        image, size = read_image(self.path(index)), read_size(entry)
        if tuple(image.shape[-2:]) != size:
            raise DataError(self._describe_mismatch(index, tuple(image.shape[-2:])))
        annotations = self.objects.get(entry["id"], [])
        masks = np.zeros((len(annotations), *size), np.bool_)
        boxes = np.zeros((len(annotations), 4), np.float32)
        for i, annotation in enumerate(annotations):
            masks[i] = read_mask(annotation["segmentation"], size)
            x, y, w, h = annotation["bbox"]
            boxes[i] = np.clip([x, y, x + w, y + h], 0, [size[1], size[0]] * 2)
        given = [annotation.get("area") for annotation in annotations]
        areas = [mask.sum() if area is None else area for area, mask in zip(given, masks, strict=True)]
        return Scene(
            image,
            torch.from_numpy(boxes),
            torch.tensor([self.categories[annotation["category_id"]] for annotation in annotations], dtype=torch.int64),
            torch.from_numpy(masks),
            torch.tensor(areas, dtype=torch.float64),
            torch.tensor([bool(annotation.get("iscrowd")) for annotation in annotations], dtype=torch.bool),
        )

    def problems(self, *, cache: bool = True, after: Callable[[], object] | None = None) -> list[str]:
        """Defects of the JSON, then those of the image files, each of which is read."""
        if not self.ids:
            return [f"{self.file}: lists no images", *self.faults]
        repeated = [f"{self.file}: image {id} is listed {n} times" for id, n in Counter(self.ids).items() if n > 1]
        empty = [] if self.empty == "keep" else [line for i in range(len(self)) if (line := self._explain_empty(i))]
        key = f"coco {self.folder.absolute()} {self.split} {self.file.stat().st_mtime_ns}" if cache else None
        rows = run_cached_checks(
            self._inspect_image, [fingerprint_files([self.path(i)]) for i in range(len(self))], key=key, after=after
        )
        return repeated + self.faults + empty + [row["problem"] for row in rows if row["problem"]]

    def _explain_empty(self, index: int) -> str | None:
        """Why an image has no object; None if it has one, or if another problem already says why."""
        id, path = self.images[index]["id"], self.path(index)
        reported = id in self.faulty and not self.dropped  # its annotations are listed one by one
        if self.objects.get(id) or reported or not path.is_file():
            return None
        if id in self.faulty:
            reason = "all its annotations are invalid and left out"
        else:
            reason = "has no annotation of the chosen classes" if id in self.others else "has no annotation"
        return f"{path}: {reason}; set empty=keep to accept images without objects"

    def _inspect_image(self, index: int) -> Row:
        try:
            size = tuple(read_image(self.path(index)).shape[-2:])
        except DataError as error:
            return {"problem": str(error)}
        return {"problem": None if size == read_size(self.images[index]) else self._describe_mismatch(index, size)}

    def _describe_mismatch(self, index: int, size: tuple[int, ...]) -> str:
        h, w = read_size(self.images[index])
        return f"{self.path(index)}: has {size[1]} x {size[0]} pixels, but {self.file.name} says {w} x {h}"


def read_size(image: Entry) -> tuple[int, int]:
    """The size of an image as the file gives it.   ->   h, w"""
    return int(image["height"]), int(image["width"])


def find_fault(annotation: Entry, images: dict[Any, Entry], categories: set[Any]) -> str | None:
    """What is wrong with an annotation, found without drawing it; None if it is valid."""
    if not _is_known(annotation.get("image_id"), images):
        return f"image_id {annotation.get('image_id')!r:.60} is not an image of the file"
    if not _is_known(annotation.get("category_id"), categories):
        return f"category_id {annotation.get('category_id')!r:.60} is not a category of the file"
    h, w = read_size(images[annotation["image_id"]])
    box = annotation.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(v, (int, float)) for v in box):
        return f"bbox must be left, top, width and height (got {box!r:.60})"
    if not all(abs(v) < LARGEST_NUMBER for v in box) or box[2] <= 0 or box[3] <= 0:  # NaN is not below it
        return f"bbox {box!r:.80} has no area"
    if min(box[:2]) < -TOLERANCE or box[0] + box[2] > w + TOLERANCE or box[1] + box[3] > h + TOLERANCE:
        hint = f"; {CORNERS_HINT}" if box[0] < box[2] <= w and box[1] < box[3] <= h else ""
        return f"bbox {box} reaches outside the image of {w} x {h} pixels{hint}"
    area = annotation.get("area")
    if area is not None and not (isinstance(area, (int, float)) and 0 <= area < LARGEST_NUMBER):
        return f"area must be a number of pixels (got {area!r:.60})"
    crowd = annotation.get("iscrowd")
    if crowd is not None and not (isinstance(crowd, (int, float)) and crowd in (0, 1)):  # "0" would be true
        return f"iscrowd must be 0 or 1 (got {crowd!r:.60})"
    try:
        extent = find_extent(annotation.get("segmentation"), (h, w))
    except InputError as error:
        return str(error)
    return _compare_extent(box, extent)


def _compare_extent(box: Sequence[float], extent: Extent) -> str | None:
    """What is wrong if a box hardly overlaps its mask: training uses the box of the mask, evaluation uses `bbox`."""
    left, top, width, height = box
    overlap = _compute_overlap((left, top, left + width, top + height), extent)
    corners = left < width and top < height and _compute_overlap((left, top, width, height), extent) > 0.9
    if overlap >= (0.8 if corners else MIN_OVERLAP):
        return None
    sides = " to ".join(", ".join(f"{side:g}" for side in corner) for corner in (extent[:2], extent[2:]))
    hint = f"; {CORNERS_HINT}" if corners else ""
    return f"bbox {box} hardly overlaps its segmentation, which extends from {sides}{hint}"


def _compute_overlap(a: Extent, b: Extent) -> float:
    """Intersection over union, each box widened by a pixel on every side, since small ones are rounded too."""
    sides = [(min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + 2 * TOLERANCE) for i in (0, 1)]
    shared = max(0.0, sides[0]) * max(0.0, sides[1])
    areas = [(each[2] - each[0] + 2 * TOLERANCE) * (each[3] - each[1] + 2 * TOLERANCE) for each in (a, b)]
    return shared / (sum(areas) - shared)


def _is_known(id: Any, known: Collection[Any]) -> bool:
    return isinstance(id, Hashable) and id in known


def _check_unique(file: Path, what: str, values: Sequence[Any], remedy: str) -> None:
    repeated = [value for value, n in Counter(values).items() if n > 1]
    if repeated:
        raise DataError(f"{file}: several categories have the {what} {repeated[0]!r}; {remedy}")


def _find_file(root: Path, split: str, patterns: Sequence[str]) -> Path:
    paths = [root / pattern.format(split) for pattern in patterns]
    for path in paths:
        if path.is_file():
            return path
    raise DataError(f"coco: there is no {paths[0]}; {root} should hold {LAYOUT}")


def _find_image_folder(root: Path, split: str, images: Sequence[Entry]) -> Path:
    """The folder that has one of the first images, or the one where they should be."""
    folders = [root / split, root / "images" / split, root / "images", root]
    names = [str(image["file_name"]) for image in images[:20]]
    return next((folder for folder in folders if any((folder / name).is_file() for name in names)), folders[0])


def _read_json(path: Path) -> dict[str, list[Entry]]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from None
    needed = {"images": ("id", "file_name", "width", "height"), "annotations": (), "categories": ("id", "name")}
    for part, keys in needed.items():
        entries = content.get(part) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise DataError(f"{path}: has no list of '{part}'; a file of COCO instances has {', '.join(needed)}")
        for place, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise DataError(f"{path}: {part}[{place}] must be a JSON object (got {entry!r:.40})")
            for key in keys:
                if key not in entry:
                    raise DataError(f"{path}: {part}[{place}] has no {key}")
            for key in keys:
                if not _is_valid(key, entry[key]):
                    raise DataError(f"{path}: {part}[{place}]: {key} cannot be {entry[key]!r:.60}")
    return content


def _is_valid(key: str, value: Any) -> bool:
    if key in ("width", "height"):
        try:
            return 0 < int(value) < 2**31
        except (TypeError, ValueError, OverflowError):
            return False
    return isinstance(value, str) or (key != "file_name" and isinstance(value, (int, float)))
