"""Time calls, and race contenders on the same inputs."""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from hamburger.errors import check_count

Name = TypeVar("Name", bound=Hashable)
Inputs = TypeVar("Inputs")


@dataclass(frozen=True)
class Contender:
    """`prepare` turns the round's inputs into arguments and is not timed; `run` is timed."""

    prepare: Callable[[Any], tuple[Any, ...]]
    run: Callable[..., Any]


@dataclass(frozen=True)
class Timing:
    ms: float  # median
    ms_iqr: float | None  # interquartile range; None for one sample

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        spread = interquartile_range(samples) if len(samples) > 1 else None
        return cls(statistics.median(samples), spread)


@dataclass(frozen=True)
class RaceTiming(Timing):
    """The timing of a race, which has at least two rounds and therefore always a spread."""

    ms_iqr: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> RaceTiming:
        return cls(statistics.median(samples), interquartile_range(samples))


def interquartile_range(samples: Sequence[float]) -> float:
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return third - first


def time_call(run: Callable[..., Any], args: tuple[Any, ...], device: str) -> float:
    """Return the milliseconds of one call: by CUDA events on a GPU, else until the call returns."""
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        result = run(*args)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))
    start = time.perf_counter()
    result = run(*args)
    elapsed = time.perf_counter() - start
    del result  # freeing the result is not part of the call
    return elapsed * 1e3


class TimeBudget:
    """A time budget in seconds that several measurements share."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start = seconds, time.perf_counter()

    def left(self, part: float = 1.0) -> float:
        """Return the seconds until that part of the budget is spent; negative afterwards."""
        return self.start + part * self.seconds - time.perf_counter()

    @contextlib.contextmanager
    def excused(self) -> Iterator[None]:
        """Do not count the time spent inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.start += time.perf_counter() - began


def freeze_garbage() -> None:
    """Collect garbage and freeze the rest, since a collection that scans all of torch takes 0.1 s."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def unfreeze_garbage_afterwards() -> Iterator[None]:
    """Unfreeze afterwards what `freeze_garbage` froze inside."""
    try:
        yield
    finally:
        gc.unfreeze()


def race(
    contenders: Mapping[Name, Contender],
    fresh: Callable[[], Inputs],
    *,
    repeats: int,
    warmup: int = 2,
    pause: float = 0.03,
    device: str = "cpu",
    after_round: Callable[[], object] = lambda: None,
) -> dict[Name, RaceTiming]:
    """Time every contender once per round, on the inputs that `fresh` returns for that round.

    Contenders are interleaved, so that other load and clock changes affect all of them. The order is shuffled and a
    pause precedes each call, so that caches and spinning threads of one contender do not always affect the same next.
    """
    check_count("bench", "repeats", repeats, least=2)
    shuffle = random.Random(0).shuffle
    names = list(contenders)
    samples: dict[Name, list[float]] = {name: [] for name in names}
    for turn in range(warmup + repeats):
        inputs = fresh()
        shuffle(names)
        for name in names:
            contender = contenders[name]
            args = contender.prepare(inputs)
            time.sleep(pause)
            elapsed = time_call(contender.run, args, device)
            if turn >= warmup:
                samples[name].append(elapsed)
        after_round()
    return {name: RaceTiming.of(times) for name, times in samples.items()}
