"""Batches of images and labels: random crops for training, whole images for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.errors import check_count
from hamburger.segmentation.data.base import SegmentationSet
from hamburger.training.augment import (
    PackedImageLoader,
    PackedImages,
    PackedSample,
    check_augmentation,
    draw_view,
    render,
    to_pixels,
)
from hamburger.training.datasets import Sample
from hamburger.training.image_files import MEAN, STD, normalise
from hamburger.training.keyed_rng import KeyedRng
from hamburger.training.loader import prefetch


class SegmentationBatch(NamedTuple):
    """`images`: b 3 crop crop, float32, normalised.   `labels`: b crop crop, int64, 255 where unlabelled.   `ids`: b"""

    images: Tensor
    labels: Tensor
    ids: list[str]


class SegmentationBatches(PackedImageLoader[SegmentationSet, SegmentationBatch]):
    """Crops of `crop` x `crop` pixels of images scaled by a factor from `scales`; `options` go to `BatchLoader`."""

    def __init__(
        self,
        dataset: SegmentationSet,
        *,
        crop: int,
        scales: Sequence[float] = (0.5, 2.0),
        flip: bool = True,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
        **options: Any,
    ) -> None:
        check_augmentation("Batches", crop, scales, flip, 0.0)
        self.crop, self.scales, self.flip = crop, (float(scales[0]), float(scales[1])), flip
        self.mean, self.std = tuple(mean), tuple(std)
        super().__init__(dataset, **options)

    def read(self, index: int) -> PackedSample:
        return to_pixels(self.dataset[index])

    def cut(
        self, packed: PackedImages, indices: Sequence[int], draws: Sequence[KeyedRng], ids: list[str]
    ) -> SegmentationBatch:
        views = [
            draw_view(each, packed.sizes[i], crop=self.crop, scales=self.scales, flip=self.flip)
            for i, each in zip(indices, draws, strict=True)
        ]
        images, labels = render(packed, indices, views, crop=self.crop, mean=self.mean, std=self.std)
        return SegmentationBatch(images, labels, ids)


MAX_WAITING_BYTES = 2**27  # about 200 images of VOC; more hardly reduce the number of batches


def evaluation_batches(
    dataset: SegmentationSet,
    *,
    batch: int = 1,
    device: torch.device | str = "cpu",
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Iterator[SegmentationBatch]:
    """Yield every image once at its own size, in batches of at most `batch` images of equal size.

    An image waits for others of its size. When more than MAX_WAITING_BYTES wait in total, the size with the most images
    is yielded. The batches depend on the images alone, never on timing. With several processes, each gets every
    `world`-th image from `rank` on.
    """
    check_count("evaluation_batches", "batch", batch, least=1)
    check_count("evaluation_batches", "workers", workers, least=0)
    indices = range(rank, len(dataset), world)
    waiting: dict[torch.Size, list[tuple[int, Sample]]] = {}  # by size, in the order of the first image of each size

    def stack(size: torch.Size) -> SegmentationBatch:
        members = waiting.pop(size)
        images = torch.stack([sample.image for _, sample in members]).to(device)
        labels = torch.stack([sample.label for _, sample in members]).to(device)
        return SegmentationBatch(
            normalise(images, mean, std), labels.long(), [dataset.ids[index] for index, _ in members]
        )

    with closing(prefetch(dataset.__getitem__, indices, workers=workers, depth=2 * max(batch, workers))) as samples:
        for index, sample in zip(indices, samples, strict=True):
            size = sample.label.shape
            waiting.setdefault(size, []).append((index, sample))
            if len(waiting[size]) == batch:
                yield stack(size)
            elif sum(sample.nbytes for members in waiting.values() for _, sample in members) > MAX_WAITING_BYTES:
                yield stack(max(waiting, key=lambda size: len(waiting[size])))
        for size in list(waiting):
            yield stack(size)
