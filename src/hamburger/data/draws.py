"""Random numbers as a function of a key alone: the same on every machine, in every process, in any order.

Only PCG64's raw integers are used. Their stream is fixed; that of numpy's higher functions may change with a version.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class Draws:
    """A stream of its own for every key, such as (seed, step, position)."""

    def __init__(self, *key: int) -> None:
        self.bits = np.random.PCG64(np.random.SeedSequence(key))

    def below(self, most: int, count: int) -> Integers:
        """`count` numbers 0 ... most - 1. The modulo's bias is below 2^-50 here."""
        return (self.bits.random_raw(count) % np.uint64(most)).astype(np.int64)

    def uniform(self) -> float:
        """In [0, 1)."""
        return int(self.bits.random_raw() >> 11) * 2.0**-53

    def shuffled(self, n: int) -> Integers:
        return np.argsort(self.bits.random_raw(n), kind="stable")

    def noise(self, *shape: int) -> npt.NDArray[np.float64]:
        """Nearly normal, mean 0 and deviation 1: the sum of four bytes, shifted and scaled."""
        n = int(np.prod(shape))
        drawn = self.bits.random_raw(-(-n // 2)).astype("<u8").view(np.uint8)[: 4 * n].reshape(4, *shape)
        summed = drawn.sum(0, dtype=np.int64)
        return (summed - 510) * (1 / np.sqrt(4 * (256**2 - 1) / 12))
