"""Training batches of images and labels: from a data set to tensors on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.data.augment import check_augmentation, draw_view, render
from hamburger.data.base import SegmentationSet
from hamburger.data.draws import Draws
from hamburger.data.gathered import Gathered
from hamburger.data.normalise import MEAN, STD
from hamburger.data.packed import Packed, Pixels, to_pixels


class Batch(NamedTuple):
    """`images`: b 3 crop crop, float32, normalised.   `labels`: b crop crop, int64, 255 where unlabelled.   `ids`: b"""

    images: Tensor
    labels: Tensor
    ids: list[str]


class Batches(Gathered[SegmentationSet, Batch]):
    def __init__(
        self,
        dataset: SegmentationSet,
        *,
        batch: int,
        crop: int,
        scales: Sequence[float] = (0.5, 2.0),
        flip: bool = True,
        photometric: float = 0.0,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        workers: int = 0,
        resident: str = "auto",
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
        loaded: Callable[[], object] | None = None,
    ) -> None:
        check_augmentation("Batches", crop, scales, flip, photometric)
        self.crop, self.scales = crop, (float(scales[0]), float(scales[1]))
        self.flip, self.photometric = flip, float(photometric)
        self.mean, self.std = tuple(mean), tuple(std)
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
            loaded=loaded,
        )

    def read(self, index: int) -> Pixels:
        return to_pixels(self.dataset[index])

    def cut(self, packed: Packed, indices: Sequence[int], draws: Sequence[Draws], ids: list[str]) -> Batch:
        views = [
            draw_view(
                each,
                packed.sizes[i],
                crop=self.crop,
                scales=self.scales,
                flip=self.flip,
                photometric=self.photometric,
            )
            for i, each in zip(indices, draws, strict=True)
        ]
        images, labels = render(packed, indices, views, crop=self.crop, mean=self.mean, std=self.std)
        return Batch(images, labels, ids)
