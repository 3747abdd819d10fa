"""Training batches: random crops of images and labels, normalised as ImageNet weights expect it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

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
from hamburger.training.loader import KeyedRng


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
        **options: Any,
    ) -> None:
        check_augmentation("Batches", crop, scales, flip, 0.0)
        self.crop, self.scales, self.flip = crop, (float(scales[0]), float(scales[1])), flip
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
        images, labels = render(packed, indices, views, crop=self.crop)
        return SegmentationBatch(images, labels, ids)
