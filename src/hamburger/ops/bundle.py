"""Several tensors in one piece of memory: to take it, to keep it and to look at it costs the host as much as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNED = 512  # bytes, as torch aligns its memory


class Piece(NamedTuple):
    place: int
    size: int  # bytes
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Layout:
    """Where each of them lies. Equal to itself alone, so that it is quickly looked up."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.pieces: list[Piece] = []
        self.size = 0
        for t in tensors:
            extent = 1 + sum((length - 1) * step for length, step in zip(t.shape, t.stride(), strict=True))
            size = extent * t.element_size() if t.numel() else 0
            self.pieces.append(Piece(self.size, size, tuple(t.shape), t.stride(), t.dtype))
            self.size += -(-size // ALIGNED) * ALIGNED

    def tensors(self, memory: Tensor) -> list[Tensor]:
        return [memory[p.place : p.place + p.size].view(p.dtype).as_strided(p.shape, p.stride) for p in self.pieces]


class Bundle(NamedTuple):
    """`layout` of the single piece that is kept, or None where each tensor is kept for itself."""

    kept: tuple[Tensor, ...]
    layout: Layout | None

    def tensors(self) -> Sequence[Tensor]:
        return self.kept if self.layout is None else self.layout.tensors(*self.kept)


def bundled(tensors: Sequence[Tensor]) -> Bundle:
    """Copies of them."""
    layout = Layout(tensors)
    memory = torch.empty(layout.size, dtype=torch.uint8, device=tensors[0].device)
    for own, given in zip(layout.tensors(memory), tensors, strict=True):
        own.copy_(given)
    return Bundle((memory,), layout)
