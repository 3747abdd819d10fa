"""Training batches of scenes, resized, flipped and cropped, in the form torchvision's detectors take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.detection.data.base import DetectionSet, Scene, find_boxes
from hamburger.training.augment import AugmentedView, check_augmentation, draw_view, interpolation_taps
from hamburger.training.image_files import MEAN
from hamburger.training.keyed_rng import KeyedRng
from hamburger.training.loader import BatchLoader, upload


class SceneBatch(NamedTuple):
    """b images with their objects."""

    images: list[Tensor]  # 3 h w each, in [0, 1]
    targets: list[dict[str, Tensor]]  # boxes, labels and masks; label 0 is the background
    ids: list[str]


class SceneBatches(BatchLoader[DetectionSet, Scene, list[Scene], SceneBatch]):
    """Random views of scenes: scaled by a factor from `scales`, mirrored half of the time, cropped to `crop` x `crop`.

    `pad` fills views up to the square; without it, a view of a smaller image is smaller.
    """

    def __init__(
        self,
        dataset: DetectionSet,
        *,
        batch: int,
        crop: int,
        scales: Sequence[float] = (1.0, 1.0),
        flip: bool = True,
        pad: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        workers: int = 0,
        resident: str = "auto",
    ) -> None:
        check_augmentation("SceneBatches", crop, scales, flip, 0.0)
        self.crop, self.scales, self.flip, self.pad = crop, (float(scales[0]), float(scales[1])), flip, pad
        super().__init__(
            dataset,
            batch=batch,
            seed=seed,
            device=device,
            rank=rank,
            world=world,
            accumulate=accumulate,
            workers=workers,
            resident=resident,
        )

    def read(self, index: int) -> Scene:
        return self.dataset[index]

    def hold(self, samples: Iterable[Scene]) -> list[Scene]:
        return [scene.to(self.device) for scene in samples]

    def cut(self, held: list[Scene], indices: Sequence[int], draws: Sequence[KeyedRng], ids: list[str]) -> SceneBatch:
        images, targets = [], []
        for i, each in zip(indices, draws, strict=True):
            h, w = held[i].image.shape[-2:]
            view = draw_view(each, (h, w), crop=self.crop, scales=self.scales, flip=self.flip)
            scene = augment_scene(held[i], view, crop=self.crop, pad=self.pad)
            images.append(scene.image)
            targets.append({"boxes": scene.boxes, "labels": scene.labels + 1, "masks": scene.masks.to(torch.uint8)})
        return SceneBatch(images, targets, ids)


# -- augmentation ------------------------------------------------------------------------------------------------------

MIN_PIXELS = 4  # an object with fewer visible pixels is left out


class AugmentedScene(NamedTuple):
    """A view of a scene with its m visible objects."""

    image: Tensor  # 3 h w in [0, 1]
    boxes: Tensor  # m 4
    labels: Tensor  # m, 0 ... k - 1
    masks: Tensor  # m h w


def augment_scene(
    scene: Scene, view: AugmentedView, *, crop: int, pad: bool = True, background: Sequence[float] = MEAN
) -> AugmentedScene:
    """The part of a scene inside `view`. Crowds, and objects with fewer than 4 visible pixels, are left out.

    Images are resized bilinearly, masks by the nearest pixel. Boxes are those of the visible masks. Outside the image,
    `pad` fills in the colour `background`; without `pad` the view ends at the image.
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
    upper, lower = scene.image[:, y_low].float(), scene.image[:, y_high].float()  # 3 crop w
    upper, lower = (torch.lerp(line[..., x_low], line[..., x_high], x_share) for line in (upper, lower))
    colours = torch.lerp(upper, lower, y_share[:, None]) / 255
    image = torch.where(inside, colours, upload(list(background), device)[:, None, None])
    masks = scene.masks[:, y_near][..., x_near] & inside
    kept = ~scene.crowd & (masks.flatten(1).sum(1) >= MIN_PIXELS)
    masks = masks[kept]
    return AugmentedScene(image, find_boxes(masks), scene.labels[kept], masks)
