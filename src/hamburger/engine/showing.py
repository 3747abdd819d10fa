"""Images of a split beside what networks make of them, as a report shows them for every task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.metrics.score import Score

if TYPE_CHECKING:
    from hamburger.models.info import Info

Colour = tuple[int, int, int]
Legend = Sequence[tuple[Colour, str]]


class Picture(NamedTuple):
    """`pixels`: 3 h w, uint8.   `drawn`: of colours that stand for something, not to be mixed when it shrinks"""

    pixels: Tensor
    words: str
    drawn: bool = False


class Showing(ABC):
    """Made of a split that `Task.split` opened. The same index and weights give the same pictures."""

    score: ClassVar[Score]  # of one image: by it images are found where one network is ahead of another
    each: ClassVar[int] = 2  # images under each heading
    images: ClassVar[str] = "whole image"  # how networks are shown them

    sample: Callable[[int], Any]  # one of the split, as it is there

    def __init__(self, split: Any) -> None:
        self.split = split
        self.sample = cache(lambda index: split[index])  # several networks look at each

    def __len__(self) -> int:
        return len(self.split)

    def name(self, index: int) -> str:
        """Of the image, for its caption."""
        return str(self.split.ids[index])

    @abstractmethod
    def image(self, index: int) -> Tensor:
        """3 h w, uint8"""

    def input(self, index: int, info: Info, device: torch.device) -> Tensor | None:
        """What the network takes, so that hams and spectra can be looked at; None where that is no one tensor."""
        return None

    @abstractmethod
    def answer(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Any:
        """What the network makes of the image."""

    @abstractmethod
    def judge(self, index: int, answer: Any) -> float:
        """The `score` of an answer."""

    @abstractmethod
    def row(self, index: int, answers: Mapping[str, Any], note: str = "") -> list[Picture]:
        """The image with its truth, then the answers by the name of their network; `note` stands behind its name."""

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        """What colours mean."""
        return []

    def context(self, net: nn.Module) -> str | None:
        """The dotted name of the context in the network, where there is one."""
        return None
