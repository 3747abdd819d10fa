"""Images of any sizes in one block of memory, image and label side by side: what a batch is gathered from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.data.base import Sample, SegmentationSet


class Pixels(NamedTuple):
    """One sample. `pixels`: h*w, int32, each the four bytes red, green, blue, label."""

    pixels: Tensor
    size: tuple[int, int]  # h, w


class Packed(NamedTuple):
    """Many samples. `pixels`: total, int32, one sample after another.   `starts`, `sizes`: where each lies."""

    pixels: Tensor
    starts: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]


def to_pixels(sample: Sample) -> Pixels:
    h, w = sample.label.shape
    together = torch.cat([sample.image, sample.label[None]])  # 4 h w
    return Pixels(together.flatten(1).mT.contiguous().view(torch.int32).squeeze(1), (h, w))


def read_pixels(dataset: SegmentationSet, index: int) -> Pixels:
    return to_pixels(dataset[index])


def join(samples: Iterable[Pixels]) -> Packed:
    samples = list(samples)
    starts, total = [], 0
    for sample in samples:
        starts.append(total)
        total += len(sample.pixels)
    return Packed(torch.cat([s.pixels for s in samples]), tuple(starts), tuple(s.size for s in samples))


def on_device(packed: Packed, device: torch.device) -> Packed:
    """Copied without waiting where the device is a GPU."""
    if device.type != "cuda":
        return packed._replace(pixels=packed.pixels.to(device))
    return packed._replace(pixels=packed.pixels.pin_memory().to(device, non_blocking=True))
