"""How a network looks to other programs: images in, one tensor out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


def same_class(ours: Tensor, theirs: Tensor) -> Tensor:
    """Whether the largest logit is the same one.   b k *spatial, twice   ->   b *spatial"""
    return ours.argmax(1) == theirs.argmax(1)


@dataclass(frozen=True)
class Graph:
    """- `size`: side of the image that a file is tried on where nobody asks for another
    - `inputs`, `output`: names; each input is b 3 h w, as `Info` has it normalised
    - `same`: which answers of two outputs agree
    - `answer`: what there is one answer for, in the plural
    """

    size: int = 513
    inputs: tuple[str, ...] = ("image",)
    output: str = "logits"
    same: Callable[[Tensor, Tensor], Tensor] = same_class
    answer: str = "pixels"


PIXELS = Graph()  # of a segmentation network
