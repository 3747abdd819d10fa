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
from functools import lru_cache
from itertools import islice
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hamburger import distributed
from hamburger.devices import free_memory
from hamburger.errors import DataError
from hamburger.training.recipe import Training

A = TypeVar("A")
B = TypeVar("B")
Integers = npt.NDArray[np.int64]


# -- random numbers as a function of (seed, step, position) alone, and the sample order made from them -----------------


class KeyedRng:
    """A random generator determined by its key, such as (seed, step, position)."""

    def __init__(self, *key: int) -> None:
        self.bits = np.random.PCG64(np.random.SeedSequence(key))

    def below(self, most: int, count: int) -> Integers:
        """`count` integers in 0 ... most - 1. The bias of the modulo is below 2^-50 here."""
        return (self.bits.random_raw(count) % np.uint64(most)).astype(np.int64)

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return int(self.bits.random_raw() >> 11) * 2.0**-53

    def shuffled(self, n: int) -> Integers:
        return np.argsort(self.bits.random_raw(n), kind="stable")

    def noise(self, *shape: int) -> npt.NDArray[np.float64]:
        """Nearly normal, mean 0 and deviation 1: the sum of four bytes, shifted and scaled."""
        n = int(np.prod(shape))
        drawn = self.bits.random_raw(-(-n // 2)).astype("<u8").view(np.uint8)[: 4 * n].reshape(4, *shape)
        summed = drawn.sum(0, dtype=np.int64)
        return (summed - 510) * (1 / np.sqrt(4 * (256**2 - 1) / 12))


ORDER = 1  # part of the key: the draws of the order and of the views are independent
VIEW = 2


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, n: int) -> Integers:
    return KeyedRng(seed, ORDER, epoch).shuffled(n)


def samples_of(seed: int, step: int, *, n: int, batch: int) -> list[int]:
    """The samples of a step's global batch, over all processes and micro-batches.

    Each epoch has every sample once, in its own order; a batch may span two epochs.
    """
    first = step * batch
    return [int(permutation(seed, place // n, n)[place % n]) for place in range(first, first + batch)]


def view_rng(seed: int, step: int, position: int) -> KeyedRng:
    """The generator for the view of the sample at `position` of the global batch."""
    return KeyedRng(seed, VIEW, step, position)


# -- reading ahead -----------------------------------------------------------------------------------------------------


def prefetch(work: Callable[[A], B], items: Iterable[A], *, workers: int, depth: int) -> Generator[B]:
    """Yield `work(item)` in order, computed by threads up to `depth` items ahead; without workers, as `map` does.

    Threads, not processes: Pillow decodes without holding the GIL, and threads cannot outlive a killed process. An
    exception is raised where its item would have come.
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


# -- the whole data set on the device, where it fits -------------------------------------------------------------------


CPU_BYTES = 2 * 2**30  # over all processes of a machine
PROBED = 16


class Sample(Protocol):
    """A sample that can be kept on a device."""

    @property
    def nbytes(self) -> int: ...

    def to(self, device: torch.device) -> Self: ...


S = TypeVar("S", bound=Sample)


# -- batches -----------------------------------------------------------------------------------------------------------


STEPS_AHEAD = 3
Set = TypeVar("Set", bound=Any)  # a data set with `name`, `split` and `ids`
Held = TypeVar("Held")  # many samples on the device
Part = TypeVar("Part")


class BatchLoader(ABC, Generic[Set, S, Held, Part]):
    """Yields the micro-batches of each step. `batch` counts over all processes and micro-batches.

    Its options come from a recipe that `check_supervised` has passed.

    `resident`: "yes" keeps the whole set on the device as bytes, "no" reads files as they are needed (with `workers`
    threads, or none), "auto" keeps it where it takes less than 30 % of the GPU's free memory, or 2 GiB of main memory.
    `waited` sums the seconds that the caller waited for batches.
    """

    gpu_share = 0.3  # of the free memory that resident samples may use; concatenating takes twice as much for a moment

    def __init__(
        self,
        dataset: Set,
        *,
        batch: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        workers: int = 0,
        resident: str = "auto",
    ) -> None:
        if not len(dataset.ids):
            raise DataError(f"{dataset.name}: split '{dataset.split}' is empty, there is nothing to train on")
        self.dataset, self.batch, self.seed, self.device = dataset, batch, seed, torch.device(device)
        self.rank, self.world, self.accumulate, self.workers = rank, world, accumulate, workers
        self.share = batch // (world * accumulate)
        self.waited = 0.0
        self.resident_samples: Held | None = None
        if resident == "yes" or (resident == "auto" and self._fits()):
            self.resident_samples = self.hold_all()

    def _fits(self) -> bool:
        """Whether all samples take little of the free memory, judged by some spread over the set."""
        n = len(self.dataset.ids)
        probed = range(0, n, max(1, n // PROBED))
        size = n * sum(self.read(i).nbytes for i in probed) / len(probed)
        if (free := free_memory(self.device)) is not None:
            return size < self.gpu_share * free
        return self.device.type == "cpu" and size < CPU_BYTES / self.world

    # -- implemented by each task --------------------------------------------------------------------------------

    @abstractmethod
    def read(self, index: int) -> S:
        """Read or render one sample; called by threads."""

    @abstractmethod
    def hold(self, samples: Iterable[S]) -> Held:
        """The samples on the device, ready for `cut`."""

    @abstractmethod
    def cut(self, held: Held, indices: Sequence[int], step: int, places: Sequence[int], ids: list[Any]) -> Part:
        """A micro-batch of the held samples at `indices`, each in a view drawn for its place in the global batch."""

    def hold_all(self) -> Held:
        """The whole set on the device."""
        threads = max(self.workers, min(16, os.cpu_count() or 1))
        samples = prefetch(self.read, range(len(self.dataset.ids)), workers=threads, depth=4 * threads)
        return self.hold(sample.to(self.device) for sample in samples)

    def rngs(self, step: int, places: Sequence[int]) -> list[KeyedRng]:
        """A generator for the view of each sample."""
        return [view_rng(self.seed, step, place) for place in places]

    # -- iteration -----------------------------------------------------------------------------------------------

    def at(self, step: int) -> list[Part]:
        """This process's micro-batches of one step."""
        with closing(self.run(step, step + 1)) as steps:
            return next(steps)

    def run(self, start: int, stop: int) -> Generator[list[Part]]:
        """The micro-batches of steps start ... stop - 1. Files are prefetched; closing the generator ends threads."""
        samples = (sample for step in range(start, stop) for part in self.parts(step) for sample, _ in part)
        unread = samples if self.resident_samples is None else ()
        depth = STEPS_AHEAD * self.accumulate * self.share
        with closing(prefetch(self.read, unread, workers=self.workers, depth=depth)) as stream:
            for step in range(start, stop):
                start_time = time.perf_counter()
                parts = [self._part(step, part, stream) for part in self.parts(step)]
                self.waited += time.perf_counter() - start_time
                yield parts

    def parts(self, step: int) -> list[list[tuple[int, int]]]:
        """For each micro-batch, this process's (sample, position in the global batch)."""
        chosen = samples_of(self.seed, step, n=len(self.dataset.ids), batch=self.batch)
        firsts = [(part * self.world + self.rank) * self.share for part in range(self.accumulate)]
        return [[(chosen[place], place) for place in range(first, first + self.share)] for first in firsts]

    def _part(self, step: int, part: list[tuple[int, int]], stream: Iterator[S]) -> Part:
        samples = [sample for sample, _ in part]
        if self.resident_samples is not None:
            held, indices = self.resident_samples, samples
        else:
            try:
                read = list(islice(stream, len(part)))
            except DataError as broken:
                raise DataError(f"the data changed during training, at step {step}: {broken}") from broken
            held, indices = self.hold(read), list(range(len(part)))
        places = [place for _, place in part]
        return self.cut(held, indices, step, places, [self.dataset.ids[sample] for sample in samples])


def batch_options(recipe: Any, device: torch.device) -> dict[str, Any]:
    """The options that the batches of every task take: sizes, seed, device, and this process's rank."""
    return {
        "batch": recipe.batch,
        "seed": recipe.seed,
        "device": device,
        "rank": distributed.rank(),
        "world": distributed.world_size(),
        "accumulate": recipe.accumulate,
        "workers": recipe.data.workers,
        "resident": recipe.data.resident,
    }


def to_layout(images: Tensor, recipe: Training) -> Tensor:
    """The images in the memory layout of the recipe's network."""
    return images.contiguous(memory_format=torch.channels_last) if recipe.channels_last else images
