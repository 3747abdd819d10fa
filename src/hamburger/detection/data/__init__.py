"""Detection data: the interface of a data set, its check before training, and training batches.

`coco.py` reads images and annotations from files, `shapes.py` generates scenes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.registry import Registry
from hamburger.training.augment import AugmentedView, draw_view, interpolation_taps
from hamburger.training.datasets import SampleSet, create_from_registry, raise_problems
from hamburger.training.image_files import MEAN, Colour, upload
from hamburger.training.loader import BatchLoader


class Scene(NamedTuple):
    """One image and its m objects."""

    image: Tensor  # 3 h w, uint8, RGB
    boxes: Tensor  # m 4, float32: left, top, right, bottom in pixels; right and bottom are exclusive
    labels: Tensor  # m, int64, 0 ... k - 1
    masks: Tensor  # m h w, bool
    areas: Tensor  # m, float64: by which objects count as small or large
    crowd: Tensor  # m, bool: groups, which are neither trained on nor scored

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self)

    def to(self, device: torch.device) -> Scene:
        return Scene(*(each.to(device) for each in self))


class DetectionSet(SampleSet[Scene]):
    """One split of a data set."""

    classes: tuple[str, ...]
    palette: tuple[Colour, ...]  # one per class
    digest: str = ""  # hash of the annotations; empty if name, split and options decide everything

    def problems(self, after: Callable[[], object] = lambda: None) -> list[str]:
        """Every defect, each with its path or id, found by reading all files; `after` is called once for each."""
        return []

    def count(self, after: Callable[[], object] = lambda: None) -> tuple[Counter[int], Counter[tuple[int, int]]]:
        """Objects of each class, not counting crowds, and images of each size (h, w).

        `after` is called once for each image that had to be generated.
        """
        objects: Counter[int] = Counter()
        sizes: Counter[tuple[int, int]] = Counter()
        for scene in (self[i] for i in range(len(self))):
            objects.update(scene.labels[~scene.crowd].tolist())
            sizes[scene.image.shape[1], scene.image.shape[2]] += 1
            after()
        return objects, sizes


# constructors take (split, root=..., **options); generated sets take no root
detection_sets: Registry[DetectionSet] = Registry("detection set")


def create_detection_set(name: str, split: str, root: str | Path | None = None, **options: Any) -> DetectionSet:
    """The named set's split. `root` is the folder of a set in files; a generated set takes none."""
    return create_from_registry(detection_sets, name, split, root, **options)


def check_scenes(data: DetectionSet, after: Callable[[], object] = lambda: None) -> None:
    """Raise DataError with all problems of a set, the first 20 in its message; `after` is called once for each file."""
    raise_problems(data, data.problems(after))


def find_boxes(masks: Tensor) -> Tensor:
    """The smallest boxes around non-empty masks.   m h w   ->   m 4, float32, right and bottom exclusive

    torchvision's `masks_to_boxes` waits for the GPU twice per mask.
    """
    covered = [masks.any(1), masks.any(2)]  # columns m w, rows m h
    first = [line.int().argmax(1) for line in covered]
    last = [line.shape[1] - line.flip(1).int().argmax(1) for line in covered]
    return torch.stack([*first, *last], 1).float()


# -- training batches --------------------------------------------------------------------------------------------------

MIN_PIXELS = 4  # an object with fewer visible pixels is left out


class SceneBatch(NamedTuple):
    """b images with their objects, in the form torchvision's detectors take."""

    images: list[Tensor]  # 3 h w each, in [0, 1]
    targets: list[dict[str, Tensor]]  # boxes, labels and masks; label 0 is the background
    ids: list[str]


class SceneBatches(BatchLoader[DetectionSet, Scene, list[Scene], SceneBatch]):
    """Random views of scenes: scaled by a factor from `scales`, mirrored half of the time, cropped to `crop` x `crop`.

    `pad` fills views up to the square; without it, a view of a smaller image is smaller. The other options are those of
    `BatchLoader`.
    """

    def __init__(
        self,
        dataset: DetectionSet,
        *,
        crop: int,
        scales: Sequence[float] = (1.0, 1.0),
        flip: bool = True,
        pad: bool = True,
        **options: Any,
    ) -> None:
        self.crop, self.scales, self.flip, self.pad = crop, (float(scales[0]), float(scales[1])), flip, pad
        super().__init__(dataset, **options)

    def read(self, index: int) -> Scene:
        return self.dataset[index]

    def hold(self, samples: Iterable[Scene]) -> list[Scene]:
        return [scene.to(self.device) for scene in samples]

    def cut(
        self, held: list[Scene], indices: Sequence[int], step: int, places: Sequence[int], ids: list[str]
    ) -> SceneBatch:
        views = []
        for i, each in zip(indices, self.rngs(step, places), strict=True):
            h, w = held[i].image.shape[-2:]
            view = draw_view(each, (h, w), crop=self.crop, scales=self.scales, flip=self.flip)
            views.append(augment_scene(held[i], view, crop=self.crop, pad=self.pad))
        return SceneBatch([image for image, _ in views], [target for _, target in views], ids)


def augment_scene(
    scene: Scene, view: AugmentedView, *, crop: int, pad: bool = True, background: Sequence[float] = MEAN
) -> tuple[Tensor, dict[str, Tensor]]:
    """The part of a scene inside `view`, as an image in [0, 1] and the target of a torchvision detector.

    Crowds, and objects with fewer than 4 visible pixels, are left out. Images are resized bilinearly, masks by the
    nearest pixel. Boxes are those of the visible masks. Outside the image, `pad` fills in the colour `background`;
    without `pad` the view ends at the image.
    """
    device, (h, w) = scene.image.device, scene.image.shape[-2:]
    y, x = (
        torch.arange(begin if pad else max(0, begin), begin + crop if pad else min(size, begin + crop), device=device)
        for begin, size in ((view.top, view.h), (view.left, view.w))
    )
    if view.flip:  # mirrored after resizing: count from the other side
        x = view.w - 1 - x
    inside = ((y >= 0) & (y < view.h))[:, None] & ((x >= 0) & (x < view.w))
    sizes = upload([h, view.h, w, view.w], device)
    y_near, y_low, y_high, y_share = interpolation_taps(y, sizes[0], sizes[1])
    x_near, x_low, x_high, x_share = interpolation_taps(x, sizes[2], sizes[3])
    upper, lower = (
        torch.lerp(line[..., x_low], line[..., x_high], x_share)  # 3 crop crop
        for line in (scene.image[:, y_low].float(), scene.image[:, y_high].float())
    )
    colours = torch.lerp(upper, lower, y_share[:, None]) / 255
    image = torch.where(inside, colours, upload(list(background), device)[:, None, None])
    masks = scene.masks[:, y_near][..., x_near] & inside
    keep = ~scene.crowd & (masks.flatten(1).sum(1) >= MIN_PIXELS)
    masks = masks[keep]
    return image, {"boxes": find_boxes(masks), "labels": scene.labels[keep] + 1, "masks": masks.to(torch.uint8)}


from hamburger.detection.data import coco, shapes  # noqa: E402, F401 - registers the sets, which import this file
