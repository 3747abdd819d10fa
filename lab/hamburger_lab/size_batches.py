"""Evaluate segmentation in batches of images of equal size: faster than one by one, and not always equal in bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import nn

from hamburger.errors import check_count
from hamburger.segmentation.data.base import SegmentationSet
from hamburger.segmentation.data.batches import SegmentationBatch
from hamburger.segmentation.evaluate import SegmentationScores, predict_labels
from hamburger.segmentation.task import SegmentationTask
from hamburger.training.datasets import Sample
from hamburger.training.image_files import MEAN, STD, normalise
from hamburger.training.loader import prefetch
from hamburger.training.supervised import SINGLE_SCALE, Confusion, EvaluationProtocol, evaluation_mode

EVALUATION_BATCH = 16  # images of one size that are evaluated together
MAX_WAITING_BYTES = 2**27  # about 200 images of VOC; more hardly reduce the number of batches


def size_batches(
    dataset: SegmentationSet,
    *,
    batch: int = 16,
    device: torch.device | str = "cpu",
    workers: int = 0,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Iterator[SegmentationBatch]:
    """Yield every image once at its own size, in batches of at most `batch` images of equal size.

    An image waits for others of its size. When more than MAX_WAITING_BYTES wait in total, the size with the most images
    is yielded. The batches depend on the images alone, never on timing.
    """
    check_count("size_batches", "batch", batch, least=1)
    waiting: dict[torch.Size, list[tuple[int, Sample]]] = {}  # by size, in the order of the first image of each size

    def stack(size: torch.Size) -> SegmentationBatch:
        members = waiting.pop(size)
        images = torch.stack([sample.image for _, sample in members]).to(device)
        labels = torch.stack([sample.label for _, sample in members]).to(device)
        return SegmentationBatch(
            normalise(images, mean, std), labels.long(), [dataset.ids[index] for index, _ in members]
        )

    indices, depth = range(len(dataset)), 2 * max(batch, workers)
    with closing(prefetch(dataset.__getitem__, indices, workers=workers, depth=depth)) as samples:
        for index, sample in zip(indices, samples, strict=True):
            size = sample.label.shape
            waiting.setdefault(size, []).append((index, sample))
            if len(waiting[size]) == batch:
                yield stack(size)
            elif sum(sample.nbytes for members in waiting.values() for _, sample in members) > MAX_WAITING_BYTES:
                yield stack(max(waiting, key=lambda size: len(waiting[size])))
        for size in list(waiting):
            yield stack(size)


def count_confusion(
    net: nn.Module,
    dataset: SegmentationSet,
    info: Any,
    *,
    channels_last: bool = False,
    progress: Callable[[int, int], Any] = lambda done, total: None,
    **options: Any,
) -> Confusion:
    """Return the confusion matrix of a network on every image; `options` are those of `size_batches`."""
    counts, done = Confusion(len(dataset.classes)), 0
    with evaluation_mode(net, fixed_size=False):
        for images, truth, ids in size_batches(dataset, mean=info.mean, std=info.std, **options):
            progress(done, len(dataset))
            done += len(ids)
            x = images.contiguous(memory_format=torch.channels_last) if channels_last else images
            counts.update(predict_labels(net, x), truth)
    return counts


class BatchedSegmentation(SegmentationTask):
    """Segmentation that validates several images of one size at once, which may change the last bit of a logit."""

    def evaluate(
        self,
        net: nn.Module,
        split: SegmentationSet,
        info: Any,
        *,
        batch: int = EVALUATION_BATCH,
        protocol: EvaluationProtocol = SINGLE_SCALE,
        **options: Any,
    ) -> SegmentationScores:
        counts = count_confusion(net, split, info, batch=EVALUATION_BATCH, **options)
        return SegmentationScores.of(counts, split, SINGLE_SCALE)
