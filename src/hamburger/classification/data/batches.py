"""Real images for a training: kept on the device as bytes where they fit, else read ahead from the packed file.

Batch number t is a function of (seed, t): nothing of it is state, so that a resumed run, or one with another number of
processes, sees the same images in the same order and mirrored alike.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamburger.classification.data.load import ImageSet
from hamburger.errors import OptionError, check_choice, check_count, check_seed
from hamburger.training.keyed_rng import Integers, permutation, view_rng
from hamburger.training.loader import prefetch

GPU_SHARE = 0.5  # of free memory that bytes of images may take
CPU_BYTES = 4 * 2**30
BATCHES_AHEAD = 4


class ImageBatch(NamedTuple):
    """`images`: b 3 size size in [-1, 1], float32.   `labels`: b"""

    images: Tensor
    labels: Tensor


class Feed:
    """`batch` counts over all processes and accumulated parts; each process builds its own share only.

    `resident`: "yes", "no", or "auto", which keeps what takes less than half of the GPU's free memory, or 4 GiB of main
    memory. `waited` sums the seconds that the caller waited.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        batch: int,
        flip: bool = False,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        workers: int = 4,
        resident: str = "auto",
    ) -> None:
        check_count("Feed", "batch", batch, least=1)
        check_count("Feed", "accumulate", accumulate, least=1)
        check_seed("Feed", seed)
        check_choice("Feed", "resident", resident, ("auto", "yes", "no"))
        if batch % (world * accumulate):
            raise OptionError(
                f"Feed: a batch of {batch} does not divide into {world} processes times {accumulate} accumulated "
                f"parts; make it a multiple of {world * accumulate}"
            )
        self.set, self.batch, self.flip, self.seed = images, batch, flip, seed
        self.device, self.workers = torch.device(device), workers
        self.share = batch // (world * accumulate)
        self.firsts = [(part * world + rank) * self.share for part in range(accumulate)]
        self.waited = 0.0
        self.kept: Tensor | None = None
        self.labels = torch.from_numpy(np.array(images.labels, np.int64)).to(self.device)
        if resident == "yes" or (resident == "auto" and self._fits(world)):
            self.kept = torch.from_numpy(np.array(images.images)).to(self.device)
        # where a whole epoch lies on the device, a batch of it costs no copy from the host
        self._places = lru_cache(maxsize=2)(self._epoch)

    def _fits(self, world: int) -> bool:
        size = self.set.images.size
        if self.device.type == "cuda":
            return bool(size < GPU_SHARE * torch.cuda.mem_get_info(self.device)[0])
        return size < CPU_BYTES / world

    def run(self, start: int, stop: int) -> Iterator[list[ImageBatch]]:
        """Batches start ... stop - 1, each in its accumulated parts; closing it ends its threads."""
        with closing(self._read(range(start, stop))) as stream:
            for number in range(start, stop):
                asked = time.perf_counter()
                parts = [self._part(number, first, stream) for first in self.firsts]
                self.waited += time.perf_counter() - asked
                yield parts

    def places(self, number: int) -> list[tuple[int, int, int]]:
        """The batch as stretches (epoch, from, to) of each epoch's order; it may reach from one into the next."""
        n, first, last = len(self.set), number * self.batch, (number + 1) * self.batch
        found = []
        while first < last:
            end = min(last, (first // n + 1) * n)
            found.append((first // n, first % n, first % n + end - first))
            first = end
        return found

    def indices(self, number: int) -> Integers:
        """Which images are in the whole batch."""
        n = len(self.set)
        return np.concatenate([permutation(self.seed, e, n)[a:b] for e, a, b in self.places(number)])

    def _epoch(self, epoch: int) -> Tensor:
        return torch.from_numpy(permutation(self.seed, epoch, len(self.set))).to(self.device)

    def _on_device(self, number: int, first: int) -> Tensor:
        stretches = [self._places(epoch)[a:b] for epoch, a, b in self.places(number)]
        whole = stretches[0] if len(stretches) == 1 else torch.cat(stretches)
        return whole[first : first + self.share]

    def _read(self, numbers: range) -> Generator[Tensor]:
        """Bytes of the parts of these batches one after another; none where all are kept."""
        if self.kept is not None:
            return
        wanted = (self.indices(number)[first : first + self.share] for number in numbers for first in self.firsts)
        yield from prefetch(self._gather, wanted, workers=self.workers, depth=BATCHES_AHEAD * len(self.firsts))

    def _gather(self, indices: Integers) -> Tensor:
        order = np.argsort(indices)  # a file is read fastest from its beginning to its end
        pixels = np.empty((len(indices), *self.set.images.shape[1:]), np.uint8)
        pixels[order] = self.set.images[indices[order]]
        found = torch.from_numpy(pixels)
        return found.pin_memory() if self.device.type == "cuda" else found

    def _part(self, number: int, first: int, stream: Iterator[Tensor]) -> ImageBatch:
        places = self._on_device(number, first)
        if self.kept is not None:
            pixels = self.kept[places]
        else:
            (pixels,) = islice(stream, 1)
            pixels = pixels.to(self.device, non_blocking=True)
        images = pixels.float() / 127.5 - 1
        if self.flip:
            mirrored = self._mirrored(number)[first : first + self.share]
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        return ImageBatch(images, self.labels[places])

    def _mirrored(self, number: int) -> Tensor:
        drawn = torch.from_numpy(view_rng(self.seed, number, 0).below(2, self.batch) == 1)
        return drawn.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else drawn
