"""Training batches: from a data set to tensors on the device, and how long the loop waited for them.

The batch of step t is a function of (seed, t): nothing of it is state, so that a resumed run, or one with other numbers
of processes or workers, sees the same samples in the same views.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.data.ahead import ahead
from hamburger.data.augment import check_augmentation, draw_view, render
from hamburger.data.base import SegmentationSet
from hamburger.data.normalise import MEAN, STD
from hamburger.data.order import samples_of, view_draws
from hamburger.data.packed import Packed, Pixels, join, on_device, read_pixels
from hamburger.data.resident import load, stays_resident
from hamburger.errors import DataError, OptionError, check_count, check_seed

STEPS_AHEAD = 3


class Batch(NamedTuple):
    """`images`: b 3 crop crop, float32, normalised.   `labels`: b crop crop, int64, 255 where unlabelled.   `ids`: b"""

    images: Tensor
    labels: Tensor
    ids: list[str]


class Batches:
    """`batch` counts over all processes and accumulated parts; each process builds its own share only.

    `resident`: "yes" keeps the whole set on the device as bytes, "no" reads files as they are needed (with `workers`
    threads, or none), "auto" keeps it where it takes less than 30 % of the GPU's free memory, or 2 GiB of main memory.
    `waited` sums the seconds that the caller waited for batches. `loaded` is called after each sample that is kept.
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
        call = "Batches"
        check_augmentation(call, crop, scales, flip, photometric)
        check_seed(call, seed)
        check_count(call, "batch", batch, least=1)
        check_count(call, "accumulate", accumulate, least=1)
        check_count(call, "workers", workers, least=0)
        if batch % (world * accumulate):
            raise OptionError(
                f"Batches: a batch of {batch} does not divide into {world} processes times {accumulate} accumulated "
                f"parts; make it a multiple of {world * accumulate}"
            )
        if not len(dataset):
            raise DataError(f"{dataset.name}: split '{dataset.split}' is empty, there is nothing to train on")
        self.dataset, self.batch, self.crop, self.seed, self.device = dataset, batch, crop, seed, torch.device(device)
        self.scales, self.flip, self.photometric = (float(scales[0]), float(scales[1])), flip, float(photometric)
        self.rank, self.world, self.accumulate, self.workers = rank, world, accumulate, workers
        self.share = batch // (world * accumulate)
        self.mean, self.std = tuple(mean), tuple(std)
        self.waited = 0.0
        self.kept: Packed | None = None
        if stays_resident(dataset, resident, self.device, world):
            self.kept = load(dataset, self.device, workers=workers, after=loaded)

    def at(self, step: int) -> list[Batch]:
        """This process's parts of one step's batch."""
        with closing(self._read(range(step, step + 1))) as stream:
            return self._build(step, stream)

    def run(self, start: int, stop: int) -> Iterator[tuple[int, list[Batch]]]:
        """Steps start ... stop - 1 with their parts. Files are read some steps ahead; closing it ends its threads."""
        with closing(self._read(range(start, stop))) as stream:
            for step in range(start, stop):
                asked = time.perf_counter()
                parts = self._build(step, stream)
                self.waited += time.perf_counter() - asked
                yield step, parts

    def parts(self, step: int) -> list[list[tuple[int, int]]]:
        """For each accumulated part, this process's (sample, position in the whole batch)."""
        chosen = samples_of(self.seed, step, n=len(self.dataset), batch=self.batch)
        firsts = [(part * self.world + self.rank) * self.share for part in range(self.accumulate)]
        return [[(chosen[place], place) for place in range(first, first + self.share)] for first in firsts]

    def _read(self, steps: range) -> Generator[Pixels]:
        """The samples of these steps one after another; none where they are kept."""
        if self.kept is None:
            samples = (sample for step in steps for part in self.parts(step) for sample, _ in part)
            depth = STEPS_AHEAD * self.accumulate * self.share
            yield from ahead(partial(read_pixels, self.dataset), samples, workers=self.workers, depth=depth)

    def _build(self, step: int, stream: Iterator[Pixels]) -> list[Batch]:
        return [self._part(step, part, stream) for part in self.parts(step)]

    def _part(self, step: int, part: list[tuple[int, int]], stream: Iterator[Pixels]) -> Batch:
        samples = [sample for sample, _ in part]
        if self.kept is not None:
            packed, indices = self.kept, samples
        else:
            try:
                read = list(islice(stream, len(part)))
            except DataError as broken:
                raise DataError(f"the data changed during training, at step {step}: {broken}") from broken
            packed, indices = on_device(join(read), self.device), list(range(len(part)))
        options: dict[str, Any] = {
            "crop": self.crop,
            "scales": self.scales,
            "flip": self.flip,
            "photometric": self.photometric,
        }
        views = [
            draw_view(view_draws(self.seed, step, place), packed.sizes[i], **options)
            for i, (_, place) in zip(indices, part, strict=True)
        ]
        images, labels = render(packed, indices, views, crop=self.crop, mean=self.mean, std=self.std)
        return Batch(images, labels, [self.dataset.ids[sample] for sample in samples])
