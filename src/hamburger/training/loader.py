"""Training batches of any task: which samples a step sees, prefetched or resident on the device.

The batch of step t is a function of (seed, t) and has no other state, so a resumed run, or one with other numbers of
processes or workers, sees the same samples in the same views.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from hamburger.errors import DataError, OptionError, check_choice, check_count, check_seed
from hamburger.training.keyed_rng import KeyedRng, samples_of, view_rng

A = TypeVar("A")
B = TypeVar("B")


def prefetch(work: Callable[[A], B], items: Iterable[A], *, workers: int, depth: int) -> Generator[B]:
    """`work(item)` in order, with up to `depth` items under way; plain `map` without workers.

    Threads, not processes: Pillow decodes without holding Python's lock, and threads cannot outlive a killed process.
    An exception appears where its item would have.
    """
    if not workers:
        yield from map(work, items)
        return
    source = iter(items)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="hamburger-data")
    try:
        waiting: deque[Future[B]] = deque(pool.submit(work, item) for item in islice(source, depth))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(work, item) for item in islice(source, 1))
            yield done
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# ----------------------------------------------------------------------------------------------------------------------
# A few numbers from the host to the device, without waiting for it.


def upload(values: Sequence[object], device: torch.device) -> Tensor:
    """As `torch.tensor(values, device=device)`, which on a GPU waits until all work before it is done."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


# ----------------------------------------------------------------------------------------------------------------------
# The whole data set on the device as bytes, where it fits.


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
    for one in prefetch(read, range(n), workers=threads, depth=4 * threads):
        yield one.to(device)
        if after is not None:
            after()


# ----------------------------------------------------------------------------------------------------------------------
# Training batches of any task: which samples and views a step has, read ahead or kept on the device.
#
# The batch of step t is a function of (seed, t): nothing of it is state, so that a resumed run, or one with other
# numbers of processes or workers, sees the same samples in the same views.


STEPS_AHEAD = 3


class Samples(Protocol):
    """What a batch needs to know of a data set."""

    name: str
    split: str
    ids: Sequence[str]


Set = TypeVar("Set", bound=Samples)
Held = TypeVar("Held")  # many of them on the device
Part = TypeVar("Part")


class BatchLoader(ABC, Generic[Set, S, Held, Part]):
    """`batch` counts over all processes and accumulated parts; each process builds its own share only.

    `resident`: "yes" keeps the whole set on the device as bytes, "no" reads files as they are needed (with `workers`
    threads, or none), "auto" keeps it where it takes less than 30 % of the GPU's free memory, or 2 GiB of main memory.
    `waited` sums the seconds that the caller waited for batches. `loaded` is called after each sample that is kept.
    """

    def __init__(
        self,
        dataset: Set,
        *,
        batch: int,
        seed: int,
        device: torch.device | str,
        rank: int,
        world: int,
        accumulate: int,
        workers: int,
        resident: str,
        loaded: Callable[[], object] | None = None,
    ) -> None:
        call = "Batches"
        check_seed(call, seed)
        check_count(call, "batch", batch, least=1)
        check_count(call, "accumulate", accumulate, least=1)
        check_count(call, "workers", workers, least=0)
        if batch % (world * accumulate):
            raise OptionError(
                f"Batches: a batch of {batch} does not divide into {world} processes times {accumulate} accumulated "
                f"parts; make it a multiple of {world * accumulate}"
            )
        if not len(dataset.ids):
            raise DataError(f"{dataset.name}: split '{dataset.split}' is empty, there is nothing to train on")
        self.dataset, self.batch, self.seed, self.device = dataset, batch, seed, torch.device(device)
        self.rank, self.world, self.accumulate, self.workers = rank, world, accumulate, workers
        self.share = batch // (world * accumulate)
        self.waited = 0.0
        self.kept: Held | None = None
        n = len(dataset.ids)
        if stays_resident(self.read, n, resident, self.device, world):
            self.kept = self.hold(read_all(self.read, n, self.device, workers=workers, after=loaded))

    # -- what each kind of batch says for itself -----------------------------------------------------------------

    @abstractmethod
    def read(self, index: int) -> S:
        """One sample, read or rendered; called by threads."""

    @abstractmethod
    def hold(self, samples: Iterable[S]) -> Held:
        """These samples on the device."""

    @abstractmethod
    def cut(self, held: Held, indices: Sequence[int], draws: Sequence[KeyedRng], ids: list[str]) -> Part:
        """Some of the samples that are held, each in a view that is drawn from its own numbers."""

    # -- the stream ----------------------------------------------------------------------------------------------

    def at(self, step: int) -> list[Part]:
        """This process's parts of one step's batch."""
        with closing(self._read(range(step, step + 1))) as stream:
            return self._build(step, stream)

    def run(self, start: int, stop: int) -> Iterator[list[Part]]:
        """The micro-batches of steps start ... stop - 1. Files are prefetched; closing the generator ends threads."""
        with closing(self._read(range(start, stop))) as stream:
            for step in range(start, stop):
                asked = time.perf_counter()
                parts = self._build(step, stream)
                self.waited += time.perf_counter() - asked
                yield parts

    def parts(self, step: int) -> list[list[tuple[int, int]]]:
        """For each accumulated part, this process's (sample, position in the whole batch)."""
        chosen = samples_of(self.seed, step, n=len(self.dataset.ids), batch=self.batch)
        firsts = [(part * self.world + self.rank) * self.share for part in range(self.accumulate)]
        return [[(chosen[place], place) for place in range(first, first + self.share)] for first in firsts]

    def _read(self, steps: range) -> Generator[S]:
        """The samples of these steps one after another; none where they are kept."""
        if self.kept is None:
            samples = (sample for step in steps for part in self.parts(step) for sample, _ in part)
            depth = STEPS_AHEAD * self.accumulate * self.share
            yield from prefetch(self.read, samples, workers=self.workers, depth=depth)

    def _build(self, step: int, stream: Iterator[S]) -> list[Part]:
        return [self._part(step, part, stream) for part in self.parts(step)]

    def _part(self, step: int, part: list[tuple[int, int]], stream: Iterator[S]) -> Part:
        samples = [sample for sample, _ in part]
        if self.kept is not None:
            held, indices = self.kept, samples
        else:
            try:
                read = list(islice(stream, len(part)))
            except DataError as broken:
                raise DataError(f"the data changed during training, at step {step}: {broken}") from broken
            held, indices = self.hold(read), list(range(len(part)))
        draws = [view_rng(self.seed, step, place) for _, place in part]
        return self.cut(held, indices, draws, [self.dataset.ids[sample] for sample in samples])
