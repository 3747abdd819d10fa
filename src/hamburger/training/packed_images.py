"""Images of any size in one block of memory, image and label together, from which batches are gathered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamburger.training.loader import BatchLoader, Part, Set

IGNORE = 255


Colour = tuple[int, int, int]


class Sample(NamedTuple):
    """`image`: 3 h w, uint8, RGB.    `label`: h w, uint8, 0 ... k - 1, and 255 where unlabelled."""

    image: Tensor
    label: Tensor

    @property
    def nbytes(self) -> int:
        return self.image.nbytes + self.label.nbytes


class PackedSample(NamedTuple):
    """One sample. `pixels`: h*w (and perhaps more axes), int32; of an image the four bytes red, green, blue, label."""

    pixels: Tensor
    size: tuple[int, int]  # h, w

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes

    def to(self, device: torch.device) -> PackedSample:
        return PackedSample(self.pixels.to(device), self.size)


class PackedImages(NamedTuple):
    """Many samples. `pixels`: total ..., int32, one after another.   `starts`: where each begins.   `sizes`: h, w"""

    pixels: Tensor
    starts: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]


def to_pixels(sample: Sample) -> PackedSample:
    """A sample packed into int32. Uses numpy: in a reading thread every torch call would start a thread pool."""
    h, w = sample.label.shape
    together = np.empty((h, w, 4), np.uint8)
    for channel, plane in enumerate((*sample.image.numpy(), sample.label.numpy())):
        together[..., channel] = plane
    return PackedSample(torch.from_numpy(together).view(torch.int32).flatten(), (h, w))


def join(samples: Iterable[PackedSample]) -> PackedImages:
    samples = list(samples)
    starts, total = [], 0
    for sample in samples:
        starts.append(total)
        total += len(sample.pixels)
    return PackedImages(torch.cat([s.pixels for s in samples]), tuple(starts), tuple(s.size for s in samples))


def on_device(packed: PackedImages, device: torch.device) -> PackedImages:
    """The images on the device; a copy to a GPU does not wait."""
    if device.type != "cuda" or packed.pixels.is_cuda:
        return packed._replace(pixels=packed.pixels.to(device))
    return packed._replace(pixels=packed.pixels.pin_memory().to(device, non_blocking=True))


class PackedImageLoader(BatchLoader[Set, PackedSample, PackedImages, Part], Generic[Set, Part]):
    """A batch loader whose samples are packed images."""

    def hold(self, samples: Iterable[PackedSample]) -> PackedImages:
        return on_device(join(samples), self.device)
