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

WAITING = 2**27  # bytes: some two hundred images of VOC, more of which hardly save a batch, and few large photographs


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
    """Batches of one size, at most `batch` images: images b 3 h w, labels b h w, ids.

    An image waits for others of its size, while no more than WAITING bytes wait in all; of the sizes that wait, the
    one with most images goes when there are more. What goes together depends on the images alone, never on time. Of
    several processes each gets every `world`-th image from `rank` on; together they get each exactly once.
    """
    check_count("evaluation_batches", "batch", batch, least=1)
    check_count("evaluation_batches", "workers", workers, least=0)
    own = range(rank, len(dataset), world)
    waiting: dict[torch.Size, list[tuple[int, Sample]]] = {}  # by size, in the order of their first images

    def joined(size: torch.Size) -> Batch:
        members = waiting.pop(size)
        images = torch.stack([sample.image for _, sample in members]).to(device)
        labels = torch.stack([sample.label for _, sample in members]).to(device)
        return Batch(normalise(images, mean, std), labels.long(), [dataset.ids[index] for index, _ in members])

    with closing(ahead(dataset.__getitem__, own, workers=workers, depth=2 * max(batch, workers))) as samples:
        for index, sample in zip(own, samples, strict=True):
            size = sample.label.shape
            waiting.setdefault(size, []).append((index, sample))
            if len(waiting[size]) == batch:
                yield joined(size)
            elif sum(sample.nbytes for members in waiting.values() for _, sample in members) > WAITING:
                yield joined(max(waiting, key=lambda size: len(waiting[size])))
        for size in list(waiting):
            yield joined(size)
