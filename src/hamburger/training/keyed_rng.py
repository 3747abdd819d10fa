"""Random numbers as a function of (seed, step, position) alone, and the sample order made from them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


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


# -- the samples of a step ---------------------------------------------------------------------------------------------


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
