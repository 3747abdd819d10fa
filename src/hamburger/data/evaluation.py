"""A split for evaluation: every image once, in its own size, normalised, with its label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import torch

from hamburger.data.ahead import ahead
from hamburger.data.base import Sample, SegmentationSet
from hamburger.data.batches import Batch
from hamburger.data.normalise import MEAN, STD, normalise
from hamburger.errors import check_count


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
) -> Iterator[Batch]:
    """Batches of neighbours of one size, at most `batch` of them: images b 3 h w, labels b h w, ids.

    Of several processes each gets every `world`-th image from `rank` on; together they get each exactly once.
    """
    check_count("evaluation_batches", "batch", batch, least=1)
    check_count("evaluation_batches", "workers", workers, least=0)
    own = range(rank, len(dataset), world)
    waiting: list[tuple[int, Sample]] = []

    def joined() -> Batch:
        images = torch.stack([sample.image for _, sample in waiting]).to(device)
        labels = torch.stack([sample.label for _, sample in waiting]).to(device)
        return Batch(normalise(images, mean, std), labels.long(), [dataset.ids[index] for index, _ in waiting])

    with closing(ahead(dataset.__getitem__, own, workers=workers, depth=2 * max(batch, workers))) as samples:
        for index, sample in zip(own, samples, strict=True):
            if waiting and (len(waiting) == batch or waiting[-1][1].label.shape != sample.label.shape):
                yield joined()
                waiting.clear()
            waiting.append((index, sample))
        if waiting:
            yield joined()
