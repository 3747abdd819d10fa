"""Training batches of images and labels: kept on the device as bytes if they fit, else prefetched from the packed file.

Batch number t is a function of (seed, t) alone. A resumed run, or one with another number of processes, sees the same
images in the same order with the same flips.
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

GPU_SHARE = 0.5  # of the free memory that resident images may use
CPU_BYTES = 4 * 2**30
BATCHES_AHEAD = 4


class ImageBatch(NamedTuple):
    """`images`: b 3 size size in [-1, 1], float32.   `labels`: b"""

    images: Tensor
    labels: Tensor


class ImageBatches:
    """`batch` is the size of the global batch; each process builds only its own micro-batches.

    `resident`: keep all images on the device: "yes", "no", or "auto" (if they take less than half of the GPU's free
    memory, or of 4 GiB of main memory). `waited` sums the seconds that the caller waited.
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
        check_count("ImageBatches", "batch", batch, least=1)
        check_count("ImageBatches", "accumulate", accumulate, least=1)
        check_seed("ImageBatches", seed)
        check_choice("ImageBatches", "resident", resident, ("auto", "yes", "no"))
        if batch % (world * accumulate):
            raise OptionError(
                f"ImageBatches: batch must be a multiple of {world * accumulate}, {world} processes times {accumulate} "
                f"micro-batches (got {batch})"
            )
        self.set, self.batch, self.flip, self.seed = images, batch, flip, seed
        self.device, self.workers = torch.device(device), workers
        self.share = batch // (world * accumulate)
        self.firsts = [(part * world + rank) * self.share for part in range(accumulate)]
        self.waited = 0.0
        self.resident: Tensor | None = None
        self.labels = torch.from_numpy(np.array(images.labels, np.int64)).to(self.device)
        if resident == "yes" or (resident == "auto" and self._fits(world)):
            self.resident = torch.from_numpy(np.array(images.images)).to(self.device)
        # the order of a whole epoch stays on the device, so a batch needs no copy from the CPU
        self._epoch_order = lru_cache(maxsize=2)(self._draw_epoch)

    def _fits(self, world: int) -> bool:
        size = self.set.images.size
        if self.device.type == "cuda":
            return bool(size < GPU_SHARE * torch.cuda.mem_get_info(self.device)[0])
        return size < CPU_BYTES / world

    def run(self, start: int, stop: int) -> Iterator[list[ImageBatch]]:
        """Yield batches start ... stop - 1, each as a list of micro-batches; closing the generator ends its threads."""
        with closing(self._read(range(start, stop))) as stream:
            for number in range(start, stop):
                begin = time.perf_counter()
                parts = [self._micro_batch(number, first, stream) for first in self.firsts]
                self.waited += time.perf_counter() - begin
                yield parts

    def epoch_slices(self, number: int) -> list[tuple[int, int, int]]:
        """Return the batch as slices (epoch, from, to) of the epochs' orders; it may span several epochs."""
        n, first, last = len(self.set), number * self.batch, (number + 1) * self.batch
        slices = []
        while first < last:
            end = min(last, (first // n + 1) * n)
            slices.append((first // n, first % n, first % n + end - first))
            first = end
        return slices

    def indices(self, number: int) -> Integers:
        """Return the image indices of the global batch."""
        n = len(self.set)
        return np.concatenate([permutation(self.seed, e, n)[a:b] for e, a, b in self.epoch_slices(number)])

    def _draw_epoch(self, epoch: int) -> Tensor:
        return torch.from_numpy(permutation(self.seed, epoch, len(self.set))).to(self.device)

    def _device_indices(self, number: int, first: int) -> Tensor:
        slices = [self._epoch_order(epoch)[a:b] for epoch, a, b in self.epoch_slices(number)]
        batch = slices[0] if len(slices) == 1 else torch.cat(slices)
        return batch[first : first + self.share]

    def _read(self, numbers: range) -> Generator[Tensor]:
        """Yield the bytes of each micro-batch in order; nothing if all images are on the device."""
        if self.resident is not None:
            return
        micro_batches = (
            self.indices(number)[first : first + self.share] for number in numbers for first in self.firsts
        )
        yield from prefetch(self._gather, micro_batches, workers=self.workers, depth=BATCHES_AHEAD * len(self.firsts))

    def _gather(self, indices: Integers) -> Tensor:
        order = np.argsort(indices)  # sequential reads are fastest
        pixels = np.empty((len(indices), *self.set.images.shape[1:]), np.uint8)
        pixels[order] = self.set.images[indices[order]]
        batch = torch.from_numpy(pixels)
        return batch.pin_memory() if self.device.type == "cuda" else batch

    def _micro_batch(self, number: int, first: int, stream: Iterator[Tensor]) -> ImageBatch:
        indices = self._device_indices(number, first)
        if self.resident is not None:
            pixels = self.resident[indices]
        else:
            (pixels,) = islice(stream, 1)
            pixels = pixels.to(self.device, non_blocking=True)
        images = pixels.float() / 127.5 - 1
        if self.flip:
            mirrored = self._draw_flips(number)[first : first + self.share]
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        return ImageBatch(images, self.labels[indices])

    def _draw_flips(self, number: int) -> Tensor:
        drawn = torch.from_numpy(view_rng(self.seed, number, 0).below(2, self.batch) == 1)
        return drawn.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else drawn
