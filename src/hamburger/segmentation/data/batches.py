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
    draw_view,
    render,
    to_pixels,
)


class SegmentationBatch(NamedTuple):
    """`images`: b 3 crop crop, float32, normalised.   `labels`: b crop crop, int64, 255 where unlabelled.   `ids`: b"""

    images: Tensor
    labels: Tensor
    ids: list[str]


class SegmentationBatches(PackedImageLoader[SegmentationSet, SegmentationBatch]):
    """Crops of `crop` x `crop` pixels of images scaled by a factor from `scales`; `options` go to `BatchLoader`.

    `photometric`: strength of random changes of brightness, contrast and saturation.
    """

    def __init__(
        self,
        dataset: SegmentationSet,
        *,
        crop: int,
        scales: Sequence[float] = (0.5, 2.0),
        flip: bool = True,
        photometric: float = 0.0,
        **options: Any,
    ) -> None:
        self.crop = crop
        self.views: dict[str, Any] = {"crop": crop, "scales": scales, "flip": flip, "photometric": photometric}
        super().__init__(dataset, **options)

    def read(self, index: int) -> PackedSample:
        return to_pixels(self.dataset[index])

    def cut(
        self, packed: PackedImages, indices: Sequence[int], step: int, places: Sequence[int], ids: list[str]
    ) -> SegmentationBatch:
        rngs = self.rngs(step, places)
        views = [draw_view(each, packed.sizes[i], **self.views) for i, each in zip(indices, rngs, strict=True)]
        images, labels = render(packed, indices, views, crop=self.crop)
        return SegmentationBatch(images, labels, ids)
