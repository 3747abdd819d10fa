"""Training batches of segmentation: from a data set to tensors on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.data.augment import check_augmentation, draw_view, render
from hamburger.data.base import SegmentationSet
from hamburger.data.normalise import MEAN, STD
from hamburger.data.order import view_draws
from hamburger.data.packed import Packed, Pixels, join, on_device, read_pixels
from hamburger.data.resident import estimated_bytes, load, stays_resident
from hamburger.data.stream import Stream


class Batch(NamedTuple):
    """`images`: b 3 crop crop, float32, normalised.   `labels`: b crop crop, int64, 255 where unlabelled.   `ids`: b"""

    images: Tensor
    labels: Tensor
    ids: list[str]


class Batches(Stream[Pixels, Batch]):
    """`resident`: "yes" keeps the whole set on the device as bytes, "no" reads files as they are needed, "auto" keeps
    it where it takes less than 30 % of the GPU's free memory, or 2 GiB of main memory. `loaded` is called after each
    sample that is kept.
    """

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
        super().__init__(
            dataset,
            batch=batch,
            seed=seed,
            device=device,
            rank=rank,
            world=world,
            accumulate=accumulate,
            workers=workers,
        )
        self.dataset, self.crop = dataset, crop
        self.scales, self.flip, self.photometric = (float(scales[0]), float(scales[1])), flip, float(photometric)
        self.mean, self.std = tuple(mean), tuple(std)
        self.kept: Packed | None = None
        if stays_resident(lambda: estimated_bytes(dataset), resident, self.device, world):
            self.kept = load(dataset, self.device, workers=workers, after=loaded)

    @property
    def resident(self) -> bool:
        return self.kept is not None

    def read(self, sample: int) -> Pixels:
        return read_pixels(self.dataset, sample)

    def part(self, step: int, places: Sequence[tuple[int, int]], read: list[Pixels]) -> Batch:
        samples = [sample for sample, _ in places]
        if self.kept is not None:
            packed, indices = self.kept, samples
        else:
            packed, indices = on_device(join(read), self.device), list(range(len(places)))
        options: dict[str, Any] = {
            "crop": self.crop,
            "scales": self.scales,
            "flip": self.flip,
            "photometric": self.photometric,
        }
        views = [
            draw_view(view_draws(self.seed, step, place), packed.sizes[i], **options)
            for i, (_, place) in zip(indices, places, strict=True)
        ]
        images, labels = render(packed, indices, views, crop=self.crop, mean=self.mean, std=self.std)
        return Batch(images, labels, [self.dataset.ids[sample] for sample in samples])
