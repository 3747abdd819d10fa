"""Tiles of an image on the grid of a network's maps, and a ham whose map is in tiles on disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamburger.backbones import Backbone
from hamburger.errors import InputError, OptionError
from hamburger.files import open_atomically
from hamburger.hams.base import COLUMNS, Factors, spread_positions
from hamburger.inference.disk_maps import DiskMap
from hamburger.layers.ham import HamLayer
from hamburger.segmentation.model import PixelGrid
from hamburger.tensors import full_precision, widen

BAND = 2**23  # numbers that a pass over stored maps reads at once


class Span(NamedTuple):
    """A tile along one axis, in positions of the coarsest map: read `begin:end`, own `first:last`."""

    begin: int
    end: int
    first: int
    last: int


class Tile(NamedTuple):
    rows: Span
    columns: Span


class Axis(NamedTuple):
    """One axis of the padded image: `positions` of the network's coarsest map, `stride` pixels apart.

    `patches`: position j of a map of stride t is the j-th patch of t pixels; else it is centred on pixel t j.
    """

    length: int  # of the image, in pixels
    positions: int
    stride: int
    before: int  # zeros before the image
    patches: bool

    def size(self, count: int, stride: int) -> int:
        """The positions of a map of this stride over `count` coarse ones."""
        ratio = self.stride // stride
        return ratio * count if self.patches else ratio * (count - 1) + 1

    def pixels(self, span: Span) -> tuple[int, int]:
        """Begin and end of a tile with its margins, in pixels of the image, beyond which they may be."""
        begin = span.begin * self.stride - self.before
        return begin, begin + self.size(span.end - span.begin, 1)

    def own_pixels(self, span: Span) -> tuple[int, int]:
        """Begin and end of the pixels that only this tile labels."""
        return min(span.first * self.stride, self.length), min(span.last * self.stride, self.length)

    def own(self, span: Span, stride: int, more: int = 0) -> slice:
        """The positions of a map of the tile that are in no other tile, and `more` after them."""
        ratio = self.stride // stride
        end = min(span.last * ratio + more, self.size(self.positions, stride))
        return slice((span.first - span.begin) * ratio, end - span.begin * ratio)


class Grid(NamedTuple):
    """Both axes of an image."""

    rows: Axis
    columns: Axis

    @classmethod
    def of(cls, backbone: Backbone, height: int, width: int) -> Grid:
        """The grid that `Segmenter` pads an image of this size to."""
        if backbone.corners is None:
            raise InputError("stream: the backbone takes images of one size only; use one made of convolutions")
        pixels = PixelGrid.of(backbone, height, width)
        stride, patches = pixels.stride, not backbone.corners
        return cls(
            Axis(height, (pixels.height - 1) // stride + 1, stride, pixels.before, patches),
            Axis(width, (pixels.width - 1) // stride + 1, stride, pixels.before, patches),
        )

    @property
    def stride(self) -> int:
        return self.rows.stride

    @property
    def whole(self) -> Tile:
        """All of the image as one tile."""
        return Tile(*(Span(0, axis.positions, 0, axis.positions) for axis in self))

    def size(self, tile: Tile, stride: int) -> tuple[int, int]:
        """Height and width of a map of the tile with its margins."""
        (rows, columns), (y, x) = self, tile
        return rows.size(y.end - y.begin, stride), columns.size(x.end - x.begin, stride)

    def own(self, tile: Tile, stride: int, more: int = 0) -> tuple[slice, slice]:
        return self.rows.own(tile.rows, stride, more), self.columns.own(tile.columns, stride, more)

    def find_stride(self, tile: Tile, positions: int, what: str) -> int:
        """The stride of a map of the tile, from its number of positions."""
        for stride in range(1, self.stride + 1):
            if self.stride % stride == 0 and math.prod(self.size(tile, stride)) == positions:
                return stride
        raise InputError(f"stream: {what}, a map of {positions} positions, does not line up with the image's pixels")

    def split(self, margin: int, max_pixels: int) -> list[Tile]:
        """Tiles with margins of so many positions, row by row, each of at most `max_pixels` in total."""
        rows, columns = self.rows.positions, self.columns.positions
        positions = max_pixels // self.stride**2
        side = math.isqrt(positions)
        tall = rows if rows <= side else max(side, positions // columns)  # a strip takes longer tiles
        wide = columns if columns <= side else max(side, positions // rows)
        if (tall < rows and tall <= 2 * margin) or (wide < columns and wide <= 2 * margin):
            least = ((2 * margin + 1) * self.stride) ** 2
            raise OptionError(
                f"stream: a tile needs margins of {margin * self.stride} pixels, as far as the network sees, so "
                f"max_pixels must be at least {least:,} (got {max_pixels:,})"
            )
        return [Tile(y, x) for y in _cut(rows, tall, margin) for x in _cut(columns, wide, margin)]


def _cut(count: int, size: int, margin: int) -> list[Span]:
    if count <= size:
        return [Span(0, count, 0, count)]
    tiles = -(-count // (size - 2 * margin))
    cuts = [count * i // tiles for i in range(tiles + 1)]
    return [Span(max(0, first - margin), min(count, last + margin), first, last) for first, last in pairwise(cuts)]


# -- a ham over all tiles ----------------------------------------------------------------------------------------------


class TiledHam:
    """The decomposition of a map on disk: the ham's input and codes in files, and its bases after each step."""

    def __init__(self, name: str, layer: HamLayer, stride: int, grid: Grid, folder: Path, device: torch.device) -> None:
        self.name, self.layer, self.stride, self.grid = name, layer, stride, grid
        self.folder, self.device, self.steps = folder, device, layer.eval_steps
        folder.mkdir(exist_ok=True)
        size = grid.size(grid.whole, stride)
        self.features = DiskMap(folder / "features", *size, layer.dim)
        # a step reads one file and writes the other, so that it can be repeated
        self.codes = [DiskMap(folder / f"codes{i}", *size, layer.heads * layer.ham.rank) for i in (0, 1)]

    def store(self, tile: Tile, x: Tensor) -> None:
        """Store the tile's own part of the input.   x: 1 d n, with margins"""
        values = widen(x)[0].unflatten(1, self.grid.size(tile, self.stride))  # d h w
        rows, columns = self.grid.own(tile, self.stride)
        top, left = self._origin(tile)
        self.features.write(top + rows.start, left + columns.start, values[:, rows, columns].movedim(0, 2).float())
        self.features.sync()

    def reconstruct(self, tile: Tile, x: Tensor) -> Tensor:
        """D C of a tile with its margins, in the dtype of x.   ->   1 d n"""
        (top, left), (height, width) = self._origin(tile), self.grid.size(tile, self.stride)
        codes = self.codes[(self.steps + 1) % 2].read(top, top + height, left, left + width)
        with full_precision(self.device.type):
            return (self.read_bases(self.steps) @ self._fold(codes)).flatten(0, 1)[None].to(x.dtype)

    def run_step(self, step: int) -> None:
        """Do step `step` of the solve, from 0; the last one is the read-out of the codes. It may be repeated."""
        ham, bases = self.layer.ham, self.read_bases(step)
        height, width = self.features.height, self.features.width
        sums: list[Tensor] | None = None
        band = max(1, BAND // (width * self.features.channels))
        old, new = self.codes[step % 2], self.codes[(step + 1) % 2]
        with full_precision(self.device.type):
            for top in range(0, height, band):
                bottom = min(top + band, height)
                x = self._fold(self.features.read(top, bottom, 0, width))
                factors = Factors(bases, self._fold(old.read(top, bottom, 0, width))) if step else ham.init(x, bases)
                if step == self.steps:
                    codes = ham.readout(x, factors)
                else:
                    codes = ham.update_codes(x, factors)
                    # in float64: there may be any number of positions
                    part = [term.cpu().double() for term in ham.sum_positions(x, codes)]
                    sums = part if sums is None else [a + b for a, b in zip(sums, part, strict=True)]
                new.write(top, 0, codes.flatten(0, 1).mT.unflatten(0, (bottom - top, width)))
            new.sync()
            if sums is not None:
                self._write_bases(step + 1, ham.update_bases(bases, tuple(term.to(bases) for term in sums)))

    def _origin(self, tile: Tile) -> tuple[int, int]:
        ratio = self.grid.stride // self.stride
        return tile.rows.begin * ratio, tile.columns.begin * ratio

    def _fold(self, values: Tensor) -> Tensor:
        """Positions in rows to heads in the batch, on the device.   h w (s c)   ->   s c n"""
        return values.flatten(0, 1).to(self.device).mT.unflatten(0, (self.layer.heads, -1))

    def read_bases(self, step: int) -> Tensor:
        """The bases after so many steps.   ->   s d r"""
        if step:
            with (self.folder / f"bases{step}.npy").open("rb") as file:
                return torch.from_numpy(np.load(file, allow_pickle=False)).to(self.device)
        if self.layer.dictionary.init == COLUMNS:
            height, width = self.features.height, self.features.width
            positions = spread_positions(height * width, self.layer.ham.rank, torch.device("cpu")).tolist()
            columns = [self.features.read(p // width, p // width + 1, p % width, p % width + 1) for p in positions]
            return self.layer.ham.bases_from_columns(self._fold(torch.cat(columns)))
        bases = self.layer.dictionary(torch.empty(self.layer.heads, self.layer.dim // self.layer.heads, 1))
        assert isinstance(bases, Tensor)
        return bases.to(self.device).float()

    def _write_bases(self, step: int, bases: Tensor) -> None:
        with open_atomically(self.folder / f"bases{step}.npy", durable=True) as file:
            np.save(file, bases.cpu().numpy(), allow_pickle=False)


@contextmanager
def replace_hams(layers: Mapping[str, HamLayer], run: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Inside the block, the hams return `run(name, x)`."""
    backends = {name: layer.backend for name, layer in layers.items()}
    try:
        for name, layer in layers.items():
            layer.backend = "plain"  # fused kernels would not call forward
            layer.forward = partial(run, name)  # type: ignore[method-assign]
        yield
    finally:
        for name, layer in layers.items():
            layer.backend = backends[name]
            layer.__dict__.pop("forward", None)
