"""The whole data set on the device as bytes, where it fits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Protocol, Self, TypeVar

import torch

from hamburger.data.ahead import ahead
from hamburger.errors import check_choice

GPU_SHARE = 0.3  # of free memory; while it is joined it takes twice as much for a moment
CPU_BYTES = 2 * 2**30  # over all processes of a machine, as far as we can tell
PROBED = 16


class Sample(Protocol):
    """What can be kept."""

    @property
    def nbytes(self) -> int: ...

    def to(self, device: torch.device) -> Self: ...


S = TypeVar("S", bound=Sample)


def stays_resident(read: Callable[[int], Sample], n: int, resident: str, device: torch.device, world: int) -> bool:
    """Whether to keep the n samples; "auto" compares an estimate with the memory there is."""
    check_choice("Batches", "resident", resident, ("auto", "yes", "no"))
    if resident != "auto":
        return resident == "yes"
    if device.type == "cuda":
        return estimated_bytes(read, n) < GPU_SHARE * torch.cuda.mem_get_info(device)[0]
    return device.type == "cpu" and estimated_bytes(read, n) < CPU_BYTES / world


def estimated_bytes(read: Callable[[int], Sample], n: int) -> float:
    """From some samples spread over the set."""
    probed = range(0, n, max(1, n // PROBED))
    return n * sum(read(i).nbytes for i in probed) / len(probed)


def read_all(
    read: Callable[[int], S],
    n: int,
    device: torch.device,
    *,
    workers: int = 0,
    after: Callable[[], object] | None = None,
) -> Iterator[S]:
    """Every sample read once, by threads, and moved to the device as it comes."""
    threads = max(workers, min(16, os.cpu_count() or 1))
    for one in ahead(read, range(n), workers=threads, depth=4 * threads):
        yield one.to(device)
        if after is not None:
            after()
