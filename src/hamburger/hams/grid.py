"""What the hams share that know which positions are neighbours: the shape of the grid, and its checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from hamburger.errors import OptionError, ShapeError, shorten
from hamburger.hams.nmf import NMF

MAX_AXES = 3


@dataclass(frozen=True)
class GridNMF(NMF):
    """Base of NMFs on a grid of positions, row by row. Without `grid` the positions are a line.

    A `grid` in the constructor is for positions that arrive as a line, such as the tokens of a map; maps must agree.
    """

    grid: tuple[int, ...] | None = None

    needs_grid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid is not None:
            _check_axes(type(self).__name__, self.grid)

    def on_grid(self, grid: tuple[int, ...]) -> GridNMF:
        if self.grid is None:
            return dataclasses.replace(self, grid=grid)
        if len(grid) > 1 and grid != self.grid:
            name = type(self).__name__
            raise ShapeError(f"{name}: built for the grid {self.grid}, got positions on {grid}; leave out one of them")
        return self

    def check(self, d: int, n: int) -> None:
        if self.grid is not None:
            check_grid(type(self).__name__, self.grid, n)

    def shape(self, n: int) -> tuple[int, ...]:
        """The shape of the grid of n positions."""
        return (n,) if self.grid is None else self.grid

    def check_parts(self) -> None:
        name = type(self).__name__
        raise OptionError(
            f"{name} uses the neighbours of each position, so it cannot decompose positions in parts; use NMF, HALS, "
            "VQ or CD"
        )


def check_grid(call: str, grid: Sequence[int], n: int) -> tuple[int, ...]:
    """Return the grid as a tuple; raise unless it has one to three sizes, of n positions together."""
    grid = _check_axes(call, grid)
    if math.prod(grid) != n:
        raise ShapeError(
            f"{call}: the grid must have as many positions as x, got {grid} for {n}; pass (h, w) of the map"
        )
    return grid


def _check_axes(call: str, grid: object) -> tuple[int, ...]:
    # the sizes of a graph of dynamic size are a torch.SymInt
    if not isinstance(grid, Sequence) or not all(isinstance(size, (int, torch.SymInt)) for size in grid):
        raise OptionError(f"{call}: grid must be the shape of the positions, such as (h, w), got {shorten(grid)}")
    if not 1 <= len(grid) <= MAX_AXES or any(isinstance(size, int) and size < 1 for size in grid):
        raise OptionError(f"{call}: grid must have one, two or three sizes of at least 1, got {shorten(grid)}")
    return tuple(grid)
