"""Training batches of scenes, in the form that torchvision's detectors take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.data.augment import check_augmentation, draw_view
from hamburger.data.detection.base import DetectionSet, Scene
from hamburger.data.detection.views import see
from hamburger.data.draws import Draws
from hamburger.data.stream import Stream


class SceneBatch(NamedTuple):
    """`images`: b of 3 h w in [0, 1].   `targets`: b of {boxes, labels, masks}; label 0 is the ground.   `ids`"""

    images: list[Tensor]
    targets: list[dict[str, Tensor]]
    ids: list[str]


class SceneBatches(Stream[DetectionSet, Scene, list[Scene], SceneBatch]):
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

    def cut(self, held: list[Scene], indices: Sequence[int], draws: Sequence[Draws], ids: list[str]) -> SceneBatch:
        images, targets = [], []
        for i, each in zip(indices, draws, strict=True):
            h, w = held[i].image.shape[-2:]
            view = draw_view(each, (h, w), crop=self.crop, scales=self.scales, flip=self.flip)
            seen = see(held[i], view, crop=self.crop, pad=self.pad)
            images.append(seen.image)
            targets.append({"boxes": seen.boxes, "labels": seen.labels + 1, "masks": seen.masks.to(torch.uint8)})
        return SceneBatch(images, targets, ids)
