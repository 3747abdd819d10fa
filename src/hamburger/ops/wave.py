"""Whether a whole solve fits the card at once: one launch, whose programs wait for each other after each sweep."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from hamburger.ops.tiles import cdiv, power_of_two

HOPPER = (9, 0)  # whose matrix units take their operands from shared memory
STATIC = 1024  # bytes of shared memory that the driver keeps for itself
RANKS = (64, 128)
# Programs for an image: each waits for the shares of all others; at n = 8,192 half as many with twice the columns are
# faster.
ENOUGH = 64

T = TypeVar("T")
Needs = Callable[[int, int, int], int]  # D, R, BN -> bytes of shared memory, which every ham counts for itself


class Wave(NamedTuple):
    """How a solve is cut: `programs` for each image, each with BN columns; d and r padded to D and R."""

    D: int
    R: int
    BN: int
    programs: int


class Card(NamedTuple):
    capability: tuple[int, int]
    processors: int
    shared: int  # bytes that one program can have


def wave_of(x: Tensor, r: int, needs: Needs) -> Wave | None:
    """x: b d n   ->   how to solve it in one launch, or None where it does not fit or the card is of another kind."""
    if x.dtype != torch.bfloat16 or not x.is_cuda or not gluon():
        return None
    b, d, n = x.shape
    return cut(b, d, n, r, card(x.get_device()), needs)


def cut(b: int, d: int, n: int, r: int, card: Card, needs: Needs) -> Wave | None:
    if card.capability != HOPPER or r > RANKS[-1] or d > 512:
        return None
    D, R = max(128, power_of_two(d)), max(RANKS[0], power_of_two(r))
    for BN, most in ((64, ENOUGH), (128, card.processors)):
        programs = cdiv(n, BN)
        if programs <= most and b * programs <= card.processors and needs(D, R, BN) + STATIC <= card.shared:
            return Wave(D, R, BN, programs)
    return None


_refused: set[int] = set()  # devices


def in_one_launch(solve: Callable[[], T], x: Tensor) -> T | None:
    """`solve()`; None where the driver has no room for all programs at once, and then never again on that device.

    It knows of limits that the card's own numbers do not show, such as a share of its processors.
    """
    if x.get_device() in _refused:
        return None
    try:
        return solve()
    except RuntimeError as error:
        if "cooperative" not in str(error):
            raise
        _refused.add(x.get_device())
        return None


@functools.cache
def card(index: int) -> Card:
    found = torch.cuda.get_device_properties(index)
    return Card((found.major, found.minor), found.multi_processor_count, found.shared_memory_per_block_optin)


@functools.cache
def gluon() -> bool:
    """Whether Triton has the language of these kernels."""
    try:
        from hamburger.ops import stream_kernels, wave_kernels  # noqa: F401
        from hamburger.ops.block import long_bread_kernels  # noqa: F401
    except (ImportError, AttributeError, TypeError):  # an experimental part of Triton, which may move
        return False
    return True
