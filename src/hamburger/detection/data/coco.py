"""`coco`: images and one JSON file of instances, in the layout of COCO and of the many tools that write it.

    annotations/instances_<split>.json     or annotations/<split>.json, or <split>.json
    <split>/...                            or images/<split>/..., images/..., or the folder itself

The JSON has `images` (id, file_name, width, height), `annotations` (id, image_id, category_id, bbox: left, top, width,
height, segmentation: polygons or an RLE, optionally area and iscrowd) and `categories` (id, name).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hamburger.detection.data import DetectionSet, Scene, detection_sets
from hamburger.errors import DataError, InputError, check_choice, shorten
from hamburger.files import read_bytes
from hamburger.training.datasets import Row, check_root, inspect_samples, select_classes
from hamburger.training.image_files import read_image, voc_palette
from hamburger.training.safe_files import (
    MAX_JSON_BYTES,
    MAX_MASK_BYTES,
    check_pixels,
    check_relative,
    describe,
)

LAYOUT = "annotations/instances_<split>.json and a folder <split> of images"
FILES = ("annotations/instances_{}.json", "annotations/{}.json", "{}.json")
ALL_INVALID = "all its annotations are invalid and left out"

Entry = dict[str, Any]
Mask = npt.NDArray[np.bool_]
Extent = tuple[float, float, float, float]  # left, top, right, bottom


@detection_sets.register("coco")
class CocoSet(DetectionSet):
    """One split of a set in COCO's layout.

    - `classes`: names or numbers of the classes to detect; annotations of others are left out
    - `broken`: "drop" leaves out invalid annotations, of which the official files have some
    - `empty`: "keep" accepts images without any object
    """

    name = "coco"
    in_files = True

    def __init__(
        self,
        split: str = "train2017",
        *,
        root: Path,
        classes: Sequence[str | int] | str | None = None,
        broken: str = "refuse",
        empty: str = "refuse",
    ) -> None:
        check_choice(self.name, "broken", broken, ("refuse", "drop"))
        check_choice(self.name, "empty", empty, ("refuse", "keep"))
        root = check_root(self.name, Path(root), LAYOUT)
        files = [root / name.format(split) for name in FILES]
        existing = [path for path in files if path.is_file()]
        if not existing:
            raise DataError(f"coco: there is no {files[0]}; {root} should hold {LAYOUT}")
        self.split, self.empty, self.file = split, empty, existing[0]
        content, self.digest = read_instances(self.file)
        categories = sorted(content["categories"], key=lambda each: (isinstance(each["id"], str), each["id"]))
        names = [str(category["name"]) for category in categories]
        numbers = select_classes(self.name, names, classes)
        self.classes = tuple(names[number] for number in numbers)
        _check_unique(self.file, "category id", [each["id"] for each in categories], "give each a different one")
        _check_unique(self.file, "class name", self.classes, "rename one, or choose by number with classes=0,1,...")
        for image in content["images"]:
            check_relative(f"{self.file}: image {shorten(image['id'])}", image["file_name"])
        self.palette = voc_palette(len(numbers) + 1)[1:]
        self.categories = {categories[number]["id"]: label for label, number in enumerate(numbers)}
        self.images: list[Entry] = content["images"]
        self.ids = [str(image["id"]) for image in self.images]
        self.folder = _find_image_folder(root, split, self.images)
        self.faults: list[str] = []  # what is wrong with annotations
        self.objects: dict[Any, list[Entry]] = defaultdict(list)  # valid annotations of the chosen classes by image id
        self.unused: dict[Any, str] = {}  # by image id, why some annotation is not among the objects
        self._sort_annotations(content["annotations"], {category["id"] for category in categories})
        self.dropped = len(self.faults) if broken == "drop" else 0
        if broken == "drop":
            self.faults = []

    def _sort_annotations(self, annotations: Sequence[Entry], categories: set[Any]) -> None:
        images = {image["id"]: image for image in self.images}
        first_by_id: dict[Any, Entry] = {}
        for annotation in annotations:
            id, image = annotation.get("id"), annotation.get("image_id")
            fault = find_fault(annotation, images, categories)
            # some tools repeat ids; only if the whole object is repeated would it count twice
            if fault is None and isinstance(id, Hashable):
                first = first_by_id.setdefault(id, annotation)
                if first is not annotation and all(first.get(key) == annotation.get(key) for key in OBJECT_FIELDS):
                    fault = "is listed twice"
            known = _is_known(image, images)
            if fault is None and np.prod(read_size(images[image])) * len(self.objects[image]) >= MAX_MASK_BYTES:
                fault = f"the masks of its image need more than {MAX_MASK_BYTES:,} bytes; cut the image into tiles"
            if fault is not None:
                name = images[image]["file_name"] if known else "no image"
                self.faults.append(f"{self.file}: annotation {shorten(id)} ({name}): {fault}")
                if known:
                    self.unused[image] = ALL_INVALID
            elif annotation["category_id"] in self.categories:
                self.objects[image].append(annotation)
            else:
                self.unused.setdefault(image, "has no annotation of the chosen classes")

    def path(self, index: int) -> Path:
        return self.folder / self.images[index]["file_name"]

    def read(self, index: int) -> Scene:
        image, (h, w) = self._read_image(index), read_size(self.images[index])
        annotations = self.objects.get(self.images[index]["id"], [])
        masks = np.zeros((len(annotations), h, w), np.bool_)
        boxes = np.zeros((len(annotations), 4), np.float32)
        for i, annotation in enumerate(annotations):
            masks[i] = read_mask(annotation["segmentation"], (h, w))
            left, top, width, height = annotation["bbox"]
            boxes[i] = np.clip([left, top, left + width, top + height], 0, [w, h, w, h])
        stated_areas = [annotation.get("area") for annotation in annotations]
        areas = [mask.sum() if area is None else area for area, mask in zip(stated_areas, masks, strict=True)]
        return Scene(
            image,
            torch.from_numpy(boxes),
            torch.tensor([self.categories[annotation["category_id"]] for annotation in annotations], dtype=torch.int64),
            torch.from_numpy(masks),
            torch.tensor(areas, dtype=torch.float64),
            torch.tensor([bool(annotation.get("iscrowd")) for annotation in annotations], dtype=torch.bool),
        )

    def _read_image(self, index: int) -> Tensor:
        """The image, which must have the size that the JSON gives."""
        image, (h, w) = read_image(self.path(index)), read_size(self.images[index])
        if tuple(image.shape[1:]) != (h, w):
            size = f"{image.shape[2]} x {image.shape[1]}"
            raise DataError(f"{self.path(index)}: has {size} pixels, but {self.file.name} says {w} x {h}")
        return image

    def count(self, after: Callable[[], object] = lambda: None) -> tuple[Counter[int], Counter[tuple[int, int]]]:
        annotations = (annotation for objects in self.objects.values() for annotation in objects)
        labels = (self.categories[each["category_id"]] for each in annotations if not each.get("iscrowd"))
        return Counter(labels), Counter(read_size(image) for image in self.images)

    def problems(self, after: Callable[[], object] = lambda: None) -> list[str]:
        """Defects of the JSON, then those of the image files, each of which is read."""
        if not self.ids:
            return [f"{self.file}: lists no images", *self.faults]
        repeated = [f"{self.file}: image {id} is listed {n} times" for id, n in Counter(self.ids).items() if n > 1]
        empty = [] if self.empty == "keep" else [line for i in range(len(self)) if (line := self._explain_empty(i))]
        rows = inspect_samples(self._inspect_image, len(self), after)
        problems = repeated + self.faults + empty + [row["problem"] for row in rows if row["problem"]]
        if not problems and not self.count()[0]:
            return [f"coco: split '{self.split}' has no object of any of its {len(self.classes)} classes"]
        return problems

    def _explain_empty(self, index: int) -> str | None:
        """Why an image has no object; None if it has one, or if another problem already says why."""
        id, path = self.images[index]["id"], self.path(index)
        reason = self.unused.get(id, "has no annotation")
        reported = reason == ALL_INVALID and not self.dropped  # its annotations are listed one by one
        if self.objects.get(id) or reported or not path.is_file():
            return None
        return f"{path}: {reason}; set empty=keep to accept images without objects"

    def _inspect_image(self, index: int) -> Row:
        try:
            self._read_image(index)
        except DataError as error:
            return {"problem": str(error)}
        return {"problem": None}


def read_size(image: Entry) -> tuple[int, int]:
    """The size of an image as the file gives it.   ->   h, w"""
    return int(image["height"]), int(image["width"])


def _find_image_folder(root: Path, split: str, images: Sequence[Entry]) -> Path:
    """The folder that has one of the first images, or the one where they should be."""
    folders = [root / split, root / "images" / split, root / "images", root]
    names = [image["file_name"] for image in images[:20]]
    return next((folder for folder in folders if any((folder / name).is_file() for name in names)), folders[0])


def _check_unique(file: Path, what: str, values: Sequence[Any], remedy: str) -> None:
    repeated = [value for value, n in Counter(values).items() if n > 1]
    if repeated:
        raise DataError(f"{file}: several categories have the {what} {shorten(repeated[0])}; {remedy}")


# -- the JSON file -----------------------------------------------------------------------------------------------------

OBJECT_FIELDS = ("image_id", "category_id", "bbox", "segmentation", "area", "iscrowd")
NEEDED = {"images": ("id", "file_name", "width", "height"), "annotations": (), "categories": ("id", "name")}


def read_instances(path: Path) -> tuple[dict[str, list[Entry]], str]:
    """The content of a file of COCO instances, whose images and categories are complete, and its SHA-256."""
    data = read_bytes(path, MAX_JSON_BYTES)
    try:
        content = json.loads(data)
    except RecursionError:
        raise DataError(f"{path}: not readable as JSON (its lists are nested too deeply)") from None
    except ValueError as error:  # also for numbers of thousands of digits
        raise DataError(f"{path}: not readable as JSON ({describe(error)})") from None
    for part, keys in NEEDED.items():
        entries = content.get(part) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise DataError(f"{path}: has no list of '{part}'; a file of COCO instances has {', '.join(NEEDED)}")
        for place, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise DataError(f"{path}: {part}[{place}] must be a JSON object (got {shorten(entry)})")
            for key in keys:
                if key not in entry:
                    raise DataError(f"{path}: {part}[{place}] has no {key}")
                if not _is_valid(key, entry[key]):
                    raise DataError(f"{path}: {part}[{place}]: {key} cannot be {shorten(entry[key])}")
            if part == "images":
                check_pixels(Path(f"{path}: {part}[{place}]"), *read_size(entry))
    return content, hashlib.sha256(data).hexdigest()


def _is_valid(key: str, value: Any) -> bool:
    if key in ("width", "height"):
        try:
            return not isinstance(value, bool) and 0 < int(value) < 2**31
        except (TypeError, ValueError, OverflowError):
            return False
    if key == "name" and isinstance(value, str):
        return value.isprintable()
    return isinstance(value, str) or (key != "file_name" and _is_number(value))


def _is_number(value: Any) -> bool:
    """Whether a value is a number below LARGEST_NUMBER; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


# -- faults of annotations ---------------------------------------------------------------------------------------------

TOLERANCE = 1.0  # pixels by which a box may reach beyond the image, since files round
LARGEST_NUMBER = 1e18  # of an id, a box or an area: a larger number is a mistake, and NaN is not below it
MIN_OVERLAP = 0.3  # of a box and its mask: they may differ (boxes of visible parts, of rotated boxes), but not more
CORNERS_HINT = "a bbox is left, top, width and height, but this one looks like left, top, right, bottom"


def find_fault(annotation: Entry, images: dict[Any, Entry], categories: set[Any]) -> str | None:
    """What is wrong with an annotation, found without drawing it; None if it is valid."""
    if not _is_known(annotation.get("image_id"), images):
        return f"image_id {shorten(annotation.get('image_id'))} is not an image of the file"
    if not _is_known(annotation.get("category_id"), categories):
        return f"category_id {shorten(annotation.get('category_id'))} is not a category of the file"
    h, w = read_size(images[annotation["image_id"]])
    box = annotation.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        return f"bbox must be the numbers left, top, width and height (got {shorten(box)})"
    if box[2] <= 0 or box[3] <= 0:
        return f"bbox {shorten(box)} has no area"
    if min(box[:2]) < -TOLERANCE or box[0] + box[2] > w + TOLERANCE or box[1] + box[3] > h + TOLERANCE:
        hint = f"; {CORNERS_HINT}" if box[0] < box[2] <= w and box[1] < box[3] <= h else ""
        return f"bbox {box} reaches outside the image of {w} x {h} pixels{hint}"
    area = annotation.get("area")
    if area is not None and not (_is_number(area) and area >= 0):
        return f"area must be a number of pixels (got {shorten(area)})"
    crowd = annotation.get("iscrowd")
    if crowd is not None and not (isinstance(crowd, (int, float)) and crowd in (0, 1)):  # "0" would be true
        return f"iscrowd must be 0 or 1 (got {shorten(crowd)})"
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


# -- segmentations: polygons and run-length encodings (RLE) ------------------------------------------------------------
# An RLE reads pixels column by column. Its counts are the lengths of runs of 0, 1, 0, 1, ...; the first may be 0.
# pycocotools checks neither polygons nor RLEs and reads past its buffers: everything is validated here first.

FARTHEST = 1e5  # pixels: pycocotools walks along edges in steps of a fifth of a pixel
MAX_OUTLINE = 1e6  # pixels, of an object: for the same reason, drawing it takes 0.1 s and 100 MB
FLAT = 1e-6  # square pixels below which a triangle has no area
# One number of an RLE string: five bits a character, the lowest first. Characters from P on say that more follow.
PACKED_COUNT = re.compile("[P-o]{0,6}[0-O]")


def read_mask(segmentation: Any, size: tuple[int, int]) -> Mask:
    """The mask of an annotation; an invalid segmentation raises InputError.   (h, w)   ->   h w"""
    from pycocotools import mask as coco_masks

    if isinstance(segmentation, dict):
        counts = read_counts(segmentation, size)
        return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(size[::-1]).T
    rle = coco_masks.merge(coco_masks.frPyObjects(read_polygons(segmentation), *size))
    return coco_masks.decode(rle).view(np.bool_)


def encode_masks(masks: Tensor) -> list[dict[str, Any]]:
    """One compressed RLE per mask, as COCO result files hold it.   m h w, bool   ->   m"""
    from pycocotools import mask as coco_masks

    columns_first = masks.to(torch.uint8).transpose(1, 2).contiguous().cpu().numpy()  # m w h
    return [{**rle, "counts": rle["counts"].decode()} for rle in coco_masks.encode(columns_first.T)]


def find_extent(segmentation: Any, size: tuple[int, int]) -> Extent:
    """The bounding box of a segmentation inside an image of (h, w), without drawing it.

    Raises InputError if the segmentation is invalid or covers no pixel of the image.
    """
    return (_rle_extent if isinstance(segmentation, dict) else _polygon_extent)(segmentation, size)


def read_counts(segmentation: Any, size: tuple[int, int]) -> list[int]:
    """The counts of `{"size": [h, w], "counts": [...] or "..."}`, validated for an image of `size`."""
    try:
        (h, w), counts = segmentation["size"], segmentation["counts"]
        counts = _unpack(counts) if isinstance(counts, str) else [int(count) for count in counts]
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError("an RLE needs a 'size' of two numbers and 'counts'") from None
    if (h, w) != size:
        raise InputError(f"the RLE is for {shorten(w)} x {shorten(h)} pixels, but the image has {size[1]} x {size[0]}")
    if not all(0 <= count <= h * w for count in counts):
        raise InputError(f"RLE counts must lie between 0 and {w} x {h} = {h * w} pixels")
    if sum(counts) != h * w:
        raise InputError(f"RLE counts must sum to {w} x {h} = {h * w} pixels (got {sum(counts)})")
    return counts


def _unpack(text: str) -> list[int]:
    """The counts of an RLE string. From the fourth on, each is stored as the difference from the count two before."""
    numbers = PACKED_COUNT.findall(text)
    if "".join(numbers) != text:
        raise InputError("an RLE string has characters from '0' to 'o' and ends with a complete number")
    counts: list[int] = []
    for number in numbers:
        bits = [ord(character) - ord("0") for character in number]
        value = sum((five & 31) << 5 * place for place, five in enumerate(bits))
        value -= (bits[-1] & 16) << 5 * len(bits) - 4  # two's complement: bit 4 of the last character is the sign
        counts.append(value + counts[-2] if len(counts) > 2 else value)
    return counts


def _rle_extent(segmentation: Any, size: tuple[int, int]) -> Extent:
    counts, h = np.array(read_counts(segmentation, size)), size[0]
    covered = (np.arange(len(counts)) % 2 == 1) & (counts > 0)
    if not covered.any():
        raise InputError("the RLE has no pixel of the object: all its runs of 1 are empty")
    ends = counts.cumsum()
    first, last = (ends - counts)[covered], ends[covered] - 1  # pixels of each run
    # a run that continues in the next column covers the bottom of one column and the top of another
    top, bottom = (0, h - 1) if (first // h < last // h).any() else ((first % h).min(), (last % h).max())
    return float(first[0] // h), float(top), float(last[-1] // h + 1), float(bottom + 1)


def read_polygons(polygons: Any) -> list[list[float]]:
    """Lists x, y, x, y, ... of corners, validated."""
    if not isinstance(polygons, (list, tuple)) or not polygons:
        raise InputError("a segmentation is a list of polygons or an RLE; this one is empty or neither")
    corners = [_read_corners(polygon) for polygon in polygons]
    if (length := sum(np.abs(np.diff(np.reshape(each, (-1, 2)), axis=0)).sum() for each in corners)) > MAX_OUTLINE:
        raise InputError(f"the outline of an object may be {MAX_OUTLINE:g} pixels long (got {length:g})")
    return corners


def _read_corners(polygon: Any) -> list[float]:
    try:
        if {str, bool} & set(map(type, polygon)):  # numpy would convert them
            raise TypeError
        corners = np.asarray(polygon, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError("a polygon is a list of numbers x, y, x, y, ...") from None
    if corners.ndim != 1 or len(corners) < 6 or len(corners) % 2:
        raise InputError(f"a polygon has three or more corners x, y (got {corners.size} numbers)")
    low, high = corners.min(), corners.max()
    if not (low > -FARTHEST and high < FARTHEST):  # also if one is NaN
        raise InputError(f"the corners of a polygon are pixels near the image (got {low:g} to {high:g})")
    return corners.tolist()


def _polygon_extent(polygons: Any, size: tuple[int, int]) -> Extent:
    corners = [(polygon[::2], polygon[1::2]) for polygon in read_polygons(polygons)]
    extents = [(min(x), min(y), max(x), max(y)) for x, y in corners if not _is_flat(x, y)]
    if not extents:
        raise InputError("the polygons have no area: the corners of each lie on a line")
    h, w = size
    visible = [each for each in extents if each[0] < w and each[1] < h and each[2] > 0 and each[3] > 0]
    if not visible:
        raise InputError(f"the polygons lie outside the image of {w} x {h} pixels")
    left, top, right, bottom = zip(*visible, strict=True)
    return max(0, min(left)), max(0, min(top)), min(w, max(right)), min(h, max(bottom))


def _is_flat(x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether every triangle that the first corner forms with an edge has no area."""
    edges = range(1, len(x) - 1)
    return all(abs((x[i] - x[0]) * (y[i + 1] - y[0]) - (y[i] - y[0]) * (x[i + 1] - x[0])) < FLAT for i in edges)
