"""Which sample stands where: a function of (seed, step) alone, so that resuming needs no state."""

from __future__ import annotations

from functools import lru_cache

from hamburger.data.draws import Draws, Integers

ORDER = 1  # keys of what is drawn for the order never meet those of the views
VIEW = 2


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, n: int) -> Integers:
    return Draws(seed, ORDER, epoch).shuffled(n)


def samples_of(seed: int, step: int, *, n: int, batch: int) -> list[int]:
    """The samples of a step's whole batch, over all processes and parts.

    Epoch after epoch, every sample once in an order of the epoch's own; a batch may reach from one into the next.
    """
    first = step * batch
    return [int(permutation(seed, place // n, n)[place % n]) for place in range(first, first + batch)]


def view_draws(seed: int, step: int, position: int) -> Draws:
    """For the view of the sample that stands at `position` of the whole batch."""
    return Draws(seed, VIEW, step, position)
