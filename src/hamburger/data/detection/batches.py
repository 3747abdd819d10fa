"""Training batches of scenes, in the form that torchvision's detectors take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.data.ahead import ahead
from hamburger.data.augment import check_augmentation, draw_view
from hamburger.data.detection.base import DetectionSet, Scene
from hamburger.data.detection.views import see
from hamburger.data.order import view_draws
from hamburger.data.resident import PROBED, reading_threads, stays_resident
from hamburger.data.stream import Stream


class SceneBatch(NamedTuple):
    """`images`: b of 3 crop crop in [0, 1].   `targets`: b of {boxes, labels, masks}; label 0 is the ground.   `ids`"""

    images: list[Tensor]
    targets: list[dict[str, Tensor]]
    ids: list[str]


class SceneBatches(Stream[Scene, SceneBatch]):
    """`resident` as for segmentation: whether the whole set is kept on the device."""

    def __init__(
        self,
        dataset: DetectionSet,
        *,
        batch: int,
        crop: int,
        scales: Sequence[float] = (1.0, 1.0),
        flip: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        workers: int = 0,
        resident: str = "auto",
    ) -> None:
        check_augmentation("SceneBatches", crop, scales, flip, 0.0)
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
        self.dataset, self.crop, self.flip = dataset, crop, flip
        self.scales = (float(scales[0]), float(scales[1]))
        self.kept: list[Scene] | None = None
        if stays_resident(partial(estimated_bytes, dataset), resident, self.device, world):
            threads = reading_threads(workers)
            every = ahead(dataset.__getitem__, range(self.n), workers=threads, depth=4 * threads)
            self.kept = [scene.to(self.device) for scene in every]

    @property
    def resident(self) -> bool:
        return self.kept is not None

    def read(self, sample: int) -> Scene:
        return self.dataset[sample]

    def part(self, step: int, places: Sequence[tuple[int, int]], read: list[Scene]) -> SceneBatch:
        images, targets = [], []
        for i, (sample, place) in enumerate(places):
            scene = self.kept[sample] if self.kept is not None else read[i].to(self.device)
            h, w = scene.image.shape[-2:]
            draws = view_draws(self.seed, step, place)
            view = draw_view(draws, (h, w), crop=self.crop, scales=self.scales, flip=self.flip)
            seen = see(scene, view, crop=self.crop)
            images.append(seen.image)
            targets.append({"boxes": seen.boxes, "labels": seen.labels + 1, "masks": seen.masks.to(torch.uint8)})
        return SceneBatch(images, targets, [self.dataset.ids[sample] for sample, _ in places])


def estimated_bytes(dataset: DetectionSet) -> float:
    """From some scenes spread over the set."""
    n = len(dataset)
    probed = range(0, n, max(1, n // PROBED))
    return n * sum(each.nbytes for i in probed for each in dataset[i]) / len(probed)
