"""Work done ahead of its use, by threads that end with the loop that uses it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def ahead(work: Callable[[A], B], items: Iterable[A], *, workers: int, depth: int) -> Generator[B]:
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
