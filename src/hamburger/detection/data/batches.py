"""Training batches of scenes, resized, flipped and cropped, as torchvision's detectors take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.detection.data.base import DetectionSet, Scene, boxes_of
from hamburger.training.augment import AugmentedView, check_augmentation, draw_view, interpolation_taps
from hamburger.training.image_files import MEAN
from hamburger.training.keyed_rng import KeyedRng
from hamburger.training.loader import BatchLoader, upload


class SceneBatch(NamedTuple):
    """`images`: b of 3 h w in [0, 1].   `targets`: b of {boxes, labels, masks}; label 0 is the ground.   `ids`"""

    images: list[Tensor]
    targets: list[dict[str, Tensor]]
    ids: list[str]


class SceneBatches(BatchLoader[DetectionSet, Scene, list[Scene], SceneBatch]):
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
        check_augmentation("Batches", crop, scales, flip, 0.0)
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
            seen = see(held[i], view, crop=self.crop, pad=self.pad)
            images.append(seen.image)
            targets.append({"boxes": seen.boxes, "labels": seen.labels + 1, "masks": seen.masks.to(torch.uint8)})
        return SceneBatch(images, targets, ids)


# ----------------------------------------------------------------------------------------------------------------------
# A scene as one training step sees it: resized, mirrored and cut to a square, with the boxes of what is left.


LEAST = 4  # pixels of an object that are still an object


class Seen(NamedTuple):
    """`image`: 3 h w in [0, 1].   Of m objects `boxes`: m 4, `labels`: m, 0 ... k - 1, `masks`: m h w"""

    image: Tensor
    boxes: Tensor
    labels: Tensor
    masks: Tensor


def see(scene: Scene, view: AugmentedView, *, crop: int, pad: bool = True, ground: Sequence[float] = MEAN) -> Seen:
    """Images are bilinear and masks the nearest pixel; groups, and objects of which nothing is left, are left out.

    Boxes are those of the masks that are seen. Beyond the image lies the colour `ground`, or nothing without `pad`.
    """
    device, (h, w) = scene.image.device, scene.image.shape[-2:]
    y, x = (
        torch.arange(begin if pad else max(0, begin), begin + crop if pad else min(size, begin + crop), device=device)
        for begin, size in ((view.top, view.h), (view.left, view.w))
    )
    if view.flip:  # mirrored after resizing: counted from the other side
        x = view.w - 1 - x
    inside = ((y >= 0) & (y < view.h))[:, None] & ((x >= 0) & (x < view.w))
    sizes = upload([h, view.h, w, view.w], device)
    y_near, y_low, y_high, y_share = interpolation_taps(y, sizes[0], sizes[1])
    x_near, x_low, x_high, x_share = interpolation_taps(x, sizes[2], sizes[3])
    upper, lower = scene.image[:, y_low].float(), scene.image[:, y_high].float()  # 3 crop w
    upper, lower = (torch.lerp(line[..., x_low], line[..., x_high], x_share) for line in (upper, lower))
    colours = torch.lerp(upper, lower, y_share[:, None]) / 255
    image = torch.where(inside, colours, upload(list(ground), device)[:, None, None])
    masks = scene.masks[:, y_near][..., x_near] & inside
    kept = ~scene.crowd & (masks.flatten(1).sum(1) >= LEAST)
    masks = masks[kept]
    return Seen(image, boxes_of(masks), scene.labels[kept], masks)
