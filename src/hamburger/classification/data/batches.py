"""Training batches of images and labels: kept on the device as bytes if they fit, else prefetched from the packed file.

Batch number t is a function of (seed, t) alone. A resumed run, or one with another number of processes, sees the same
images in the same order with the same crops and flips.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.classification.data.base import ImageSet
from hamburger.devices import PINNED, free_memory
from hamburger.training.image_files import upload
from hamburger.training.loader import Integers, prefetch, samples_of, view_rng

GPU_SHARE = 0.5  # of the free memory that resident images may use
CPU_BYTES = 4 * 2**30
BATCHES_AHEAD = 4


class ImageBatch(NamedTuple):
    """`images`: b 3 size size in [-1, 1], float32.   `labels`: b"""

    images: Tensor
    labels: Tensor


def to_model_input(pixels: Tensor) -> Tensor:
    """Scale images for a network.   b 3 h w, uint8   ->   b 3 h w in [-1, 1]"""
    return pixels.float() / 127.5 - 1


def crop_padded(pixels: Tensor, padding: int, corners: Tensor) -> Tensor:
    """Pad with black and crop the original size at each image's corner (row, column).   b c h w, b 2   ->   b c h w"""
    (b, c, h, w), device = pixels.shape, pixels.device
    rows, columns = (corners[:, i, None] + torch.arange(n, device=device) for i, n in enumerate((h, w)))
    padded = F.pad(pixels, (padding,) * 4).flatten(2)
    positions = (rows * (w + 2 * padding))[:, :, None] + columns[:, None]  # b h w
    return padded.gather(2, positions.reshape(b, 1, -1).expand(-1, c, -1)).unflatten(2, (h, w))


class ImageBatches:
    """`batch` is the size of the global batch; each process builds only its own micro-batches.

    `padding`: add so many black pixels on every side, then crop the original size at a random position.
    `resident`: keep all images on the device: "yes", "no", or "auto" (if they take less than half of the GPU's free
    memory, or of 4 GiB of main memory). `waited` sums the seconds that the caller waited.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        batch: int,
        flip: bool = False,
        padding: int = 0,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        workers: int = 4,
        resident: str = "auto",
    ) -> None:
        self.set, self.batch, self.flip, self.seed = images, batch, flip, seed
        self.padding, self.device, self.workers = padding, torch.device(device), workers
        self.share = batch // (world * accumulate)
        self.firsts = [(part * world + rank) * self.share for part in range(accumulate)]
        self.waited = 0.0
        self.resident: Tensor | None = None
        if resident == "yes" or (resident == "auto" and self._fits(world)):
            self.resident = torch.from_numpy(np.array(images.images)).to(self.device)

    def _fits(self, world: int) -> bool:
        size = self.set.images.size
        if (free := free_memory(self.device)) is not None:
            return bool(size < GPU_SHARE * free)
        return size < CPU_BYTES / world

    def run(self, start: int, stop: int) -> Iterator[list[ImageBatch]]:
        """Yield batches start ... stop - 1, each as a list of micro-batches; closing the generator ends its threads."""
        places = ((number, first) for number in range(start, stop) for first in self.firsts)
        workers = self.workers if self.resident is None else 0
        with closing(prefetch(self._read, places, workers=workers, depth=BATCHES_AHEAD * len(self.firsts))) as pixels:
            for number in range(start, stop):
                begin = time.perf_counter()
                parts = [self._micro_batch(number, first, next(pixels)) for first in self.firsts]
                self.waited += time.perf_counter() - begin
                yield parts

    def indices(self, number: int) -> Integers:
        """Return the image indices of the global batch."""
        return np.array(samples_of(self.seed, number, n=len(self.set), batch=self.batch))

    def _read(self, place: tuple[int, int]) -> Tensor:
        """Return the bytes of the micro-batch that begins at (batch, position).   b 3 size size"""
        number, first = place
        indices = self.indices(number)[first : first + self.share]
        if self.resident is not None:
            return self.resident[upload(indices, self.device)]
        order = np.argsort(indices)  # sequential reads are fastest
        pixels = np.empty((len(indices), *self.set.images.shape[1:]), np.uint8)
        pixels[order] = self.set.images[indices[order]]
        batch = torch.from_numpy(pixels)
        return batch.pin_memory() if self.device.type in PINNED else batch

    def _micro_batch(self, number: int, first: int, pixels: Tensor) -> ImageBatch:
        chosen = slice(first, first + self.share)
        pixels = pixels.to(self.device, non_blocking=True)
        if self.padding:
            corners = view_rng(self.seed, number, 1).below(2 * self.padding + 1, 2 * self.batch)
            pixels = crop_padded(pixels, self.padding, upload(corners.reshape(-1, 2)[chosen], self.device))
        images = to_model_input(pixels)
        if self.flip:
            mirrored = upload(view_rng(self.seed, number, 0).below(2, self.batch)[chosen] == 1, self.device)
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        return ImageBatch(images, upload(self.set.labels[self.indices(number)[chosen]], self.device))
