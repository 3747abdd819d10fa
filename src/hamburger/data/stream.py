"""Training batches as a stream: which samples stand in which step, read ahead, and how long the loop waited for them.

The batch of step t is a function of (seed, t): nothing of it is state, so that a resumed run, or one with other numbers
of processes or workers, sees the same samples in the same views.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Generic, Protocol, TypeVar

import torch

from hamburger.data.ahead import ahead
from hamburger.data.order import samples_of
from hamburger.errors import DataError, OptionError, check_count, check_seed

STEPS_AHEAD = 3

S = TypeVar("S")  # a sample as it is read
B = TypeVar("B")  # a part of a batch


class Split(Protocol):
    """What any split of any data set has."""

    name: str
    split: str

    def __len__(self) -> int: ...


class Stream(ABC, Generic[S, B]):
    """`batch` counts over all processes and accumulated parts; each process builds its own share only.

    Files are read as they are needed, with `workers` threads or none, unless `kept` says that all samples are at hand.
    `waited` sums the seconds that the caller waited for batches.
    """

    def __init__(
        self,
        dataset: Split,
        *,
        batch: int,
        seed: int,
        device: torch.device | str,
        rank: int,
        world: int,
        accumulate: int,
        workers: int,
    ) -> None:
        call = type(self).__name__
        check_seed(call, seed)
        check_count(call, "batch", batch, least=1)
        check_count(call, "accumulate", accumulate, least=1)
        check_count(call, "workers", workers, least=0)
        if batch % (world * accumulate):
            raise OptionError(
                f"{call}: a batch of {batch} does not divide into {world} processes times {accumulate} accumulated "
                f"parts; make it a multiple of {world * accumulate}"
            )
        if not len(dataset):
            raise DataError(f"{dataset.name}: split '{dataset.split}' is empty, there is nothing to train on")
        self.n, self.batch, self.seed, self.device = len(dataset), batch, seed, torch.device(device)
        self.rank, self.world, self.accumulate, self.workers = rank, world, accumulate, workers
        self.share = batch // (world * accumulate)
        self.waited = 0.0

    # -- what each kind of batch says for itself -----------------------------------------------------------------

    @property
    @abstractmethod
    def resident(self) -> bool:
        """Whether all samples are at hand, so that none is read."""

    @abstractmethod
    def read(self, sample: int) -> S:
        """One sample from its files, in a thread."""

    @abstractmethod
    def part(self, step: int, places: Sequence[tuple[int, int]], read: list[S]) -> B:
        """One part of a batch from its (sample, position in the whole batch); `read` is empty where all are kept."""

    # -- the stream ----------------------------------------------------------------------------------------------

    def at(self, step: int) -> list[B]:
        """This process's parts of one step's batch."""
        with closing(self._read(range(step, step + 1))) as stream:
            return self._build(step, stream)

    def run(self, start: int, stop: int) -> Iterator[tuple[int, list[B]]]:
        """Steps start ... stop - 1 with their parts. Files are read some steps ahead; closing it ends its threads."""
        with closing(self._read(range(start, stop))) as stream:
            for step in range(start, stop):
                asked = time.perf_counter()
                parts = self._build(step, stream)
                self.waited += time.perf_counter() - asked
                yield step, parts

    def parts(self, step: int) -> list[list[tuple[int, int]]]:
        """For each accumulated part, this process's (sample, position in the whole batch)."""
        chosen = samples_of(self.seed, step, n=self.n, batch=self.batch)
        firsts = [(part * self.world + self.rank) * self.share for part in range(self.accumulate)]
        return [[(chosen[place], place) for place in range(first, first + self.share)] for first in firsts]

    def _read(self, steps: range) -> Generator[S]:
        """The samples of these steps one after another; none where they are kept."""
        if not self.resident:
            samples = (sample for step in steps for part in self.parts(step) for sample, _ in part)
            depth = STEPS_AHEAD * self.accumulate * self.share
            yield from ahead(self.read, samples, workers=self.workers, depth=depth)

    def _build(self, step: int, stream: Iterator[S]) -> list[B]:
        built = []
        for places in self.parts(step):
            try:
                read = list(islice(stream, len(places)))
            except DataError as broken:
                raise DataError(f"the data changed during training, at step {step}: {broken}") from broken
            built.append(self.part(step, places, read))
        return built
