"""How a network looks to other programs: images in, tensors out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

Outputs = tuple[Tensor, ...]


class Judged(NamedTuple):
    """Two outputs beside each other: the largest difference of their numbers, the largest number, and which answers are
    the same, a flag each."""

    difference: float
    largest: float
    same: Tensor


def by_number(same: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Outputs, Outputs], Judged]:
    """For networks with one output; `same` says which answers of two of them agree."""

    def judge(ours: Outputs, theirs: Outputs) -> Judged:
        [a], [b] = ours, theirs
        return Judged(float((a - b).abs().max()), float(a.abs().max()), same(a, b))

    return judge


def same_class(ours: Tensor, theirs: Tensor) -> Tensor:
    """Whether the largest logit is the same one.   b k *spatial, twice   ->   b *spatial"""
    return ours.argmax(1) == theirs.argmax(1)


judge_classes = by_number(same_class)


def itself(net: nn.Module) -> nn.Module:
    return net


def called(net: nn.Module, *images: Tensor) -> Any:
    return net(*images)


@dataclass(frozen=True)
class Graph:
    """- `size`: height and width of the images that a file is tried on where nobody asks for others
    - `inputs`, `outputs`: names; each input is b 3 h w, as `Info` has it normalised
    - `judge`: how far two outputs agree
    - `differ`, `alike`: the words for it: what has a difference, what is the same
    - `answer`: what there is one answer for, in the plural; `least`: the share of them that must be the same
    - `written`: the network in the form that is written
    - `asked`: the network's own answer to inputs as the file takes them, which the file must give
    - `free`: axes that may be any in a file, if the exporter can; `fixed`: why the others cannot
    """

    size: tuple[int, int] = (513, 513)
    inputs: tuple[str, ...] = ("image",)
    outputs: tuple[str, ...] = ("logits",)
    judge: Callable[[Outputs, Outputs], Judged] = judge_classes
    differ: str = "logits"
    alike: str = "labels agree"
    answer: str = "pixels"
    least: float = 0.999
    written: Callable[[nn.Module], nn.Module] = itself
    asked: Callable[..., Any] = called
    free: tuple[str, ...] = ("batch", "height", "width")
    fixed: str = ""


PIXELS = Graph()  # of a segmentation network
