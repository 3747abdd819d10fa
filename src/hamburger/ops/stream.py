"""How a solve is cut whose programs take tiles of columns in turn: one pass over X in a sweep, whatever n is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.ops.tiles import cdiv, power_of_two
from hamburger.ops.wave import HOPPER, RANKS, STATIC, Card, card, gluon

BN = 64  # columns of a tile: more would leave no room for another one beside it, or no registers beside the sums
MOST_IMAGES = 65_535  # rows of a grid

Needs = Callable[[int, int], int]  # D, R -> bytes of shared memory, which every ham counts for itself


class Stream(NamedTuple):
    """How a solve is cut: `programs` for each image, `images` in a launch; d and r padded to D and R."""

    D: int
    R: int
    programs: int
    images: int


def stream_of(x: Tensor, r: int, needs: Needs) -> Stream | None:
    """x: b d n   ->   how to solve it with one pass per sweep, or None where the card is of another kind."""
    if x.dtype != torch.bfloat16 or not x.is_cuda or not gluon():
        return None
    b, d, n = x.shape
    return cut(b, d, n, r, card(x.get_device()), needs)


def cut(b: int, d: int, n: int, r: int, card: Card, needs: Needs) -> Stream | None:
    if card.capability != HOPPER or r > RANKS[-1] or d > 512 or b > MOST_IMAGES:
        return None
    D, R = max(128, power_of_two(d)), max(RANKS[0], power_of_two(r))
    if needs(D, R) + STATIC > card.shared:
        return None
    # one program on a multiprocessor: at d = 512 shared memory has room for no more, and all of a launch wait for
    # each other
    images = cdiv(b, cdiv(b, card.processors))
    return Stream(D, R, min(card.processors // images, cdiv(n, BN)), images)


def asynchronous(x: Tensor) -> bool:
    """Whether rows of x can be copied 16 bytes at a time, and Triton sees it: it asks for multiples of 16."""
    near = x.stride(2) == 1 and x.data_ptr() % 16 == 0
    return near and not any(size % 16 for size in (x.shape[2], x.stride(1), x.stride(0)))
