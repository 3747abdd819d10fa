"""Images of any sizes in one block of memory, image and label side by side: what a batch is gathered from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamburger.data.base import Sample


class Pixels(NamedTuple):
    """One sample. `pixels`: h*w (and perhaps more axes), int32; of an image the bytes red, green, blue, label."""

    pixels: Tensor
    size: tuple[int, int]  # h, w

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes

    def to(self, device: torch.device) -> Pixels:
        return Pixels(self.pixels.to(device), self.size)


class Packed(NamedTuple):
    """Many samples. `pixels`: total ..., int32, one sample after another.   `starts`, `sizes`: where each lies."""

    pixels: Tensor
    starts: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]


def to_pixels(sample: Sample) -> Pixels:
    """In numpy, since this runs in reading threads: each torch call there would wake a pool of threads of its own."""
    h, w = sample.label.shape
    together = np.empty((h, w, 4), np.uint8)
    for channel, plane in enumerate((*sample.image.numpy(), sample.label.numpy())):
        together[..., channel] = plane
    return Pixels(torch.from_numpy(together).view(torch.int32).flatten(), (h, w))


def join(samples: Iterable[Pixels]) -> Packed:
    samples = list(samples)
    starts, total = [], 0
    for sample in samples:
        starts.append(total)
        total += len(sample.pixels)
    return Packed(torch.cat([s.pixels for s in samples]), tuple(starts), tuple(s.size for s in samples))


def on_device(packed: Packed, device: torch.device) -> Packed:
    """Copied without waiting where the device is a GPU."""
    if device.type != "cuda" or packed.pixels.is_cuda:
        return packed._replace(pixels=packed.pixels.to(device))
    return packed._replace(pixels=packed.pixels.pin_memory().to(device, non_blocking=True))
