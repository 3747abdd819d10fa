"""The whole data set on the device as bytes, where it fits."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import torch

from hamburger.data.ahead import ahead
from hamburger.data.base import SegmentationSet
from hamburger.data.packed import Packed, Pixels, join, read_pixels
from hamburger.errors import check_choice

GPU_SHARE = 0.3  # of free memory; while it is joined it takes twice as much for a moment
CPU_BYTES = 2 * 2**30  # over all processes of a machine, as far as we can tell
PROBED = 16


def stays_resident(estimate: Callable[[], float], resident: str, device: torch.device, world: int) -> bool:
    """Whether to keep a set; "auto" compares the estimate of its bytes with the memory there is."""
    check_choice("Batches", "resident", resident, ("auto", "yes", "no"))
    if resident != "auto":
        return resident == "yes"
    if device.type == "cuda":
        return estimate() < GPU_SHARE * torch.cuda.mem_get_info(device)[0]
    return device.type == "cpu" and estimate() < CPU_BYTES / world


def estimated_bytes(dataset: SegmentationSet) -> float:
    """Four bytes a pixel, from some samples spread over the set."""
    n = len(dataset)
    probed = range(0, n, max(1, n // PROBED))
    return 4 * n * sum(dataset[i].label.numel() for i in probed) / len(probed)


def load(
    dataset: SegmentationSet,
    device: torch.device,
    *,
    workers: int = 0,
    after: Callable[[], object] | None = None,
) -> Packed:
    """Every sample read once, by threads, and moved to the device as it comes."""
    threads = reading_threads(workers)
    samples = []
    for one in ahead(partial(read_pixels, dataset), range(len(dataset)), workers=threads, depth=4 * threads):
        samples.append(Pixels(one.pixels.to(device), one.size))
        if after is not None:
            after()
    return join(samples)


def reading_threads(workers: int) -> int:
    """Before training all cores are free."""
    return max(workers, min(16, os.cpu_count() or 1))
