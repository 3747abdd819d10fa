"""The images of `ham report`: what a task draws of its predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.training.image_files import Colour
from hamburger.training.task import Metric

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info


Legend = Sequence[tuple[Colour, str]]


class CaptionedImage(NamedTuple):
    """`pixels`: 3 h w, uint8.   `drawn`: its colours are labels, so shrinking must not blend them."""

    pixels: Tensor
    caption: str
    drawn: bool = False


class Visualizer(ABC):
    """Shows images of a split opened by `Task.split`. The same index and weights give the same images."""

    metric: ClassVar[Metric]  # of one image: finds the images where one network beats another
    each: ClassVar[int] = 2  # number of images under each heading
    images: ClassVar[str] = "whole image"  # what networks are given, in words

    sample: Callable[[int], Any]  # a sample of the split, cached

    def __init__(self, split: Any) -> None:
        self.split = split
        self.sample = cache(lambda index: split[index])  # several networks predict each

    def __len__(self) -> int:
        return len(self.split)

    def name(self, index: int) -> str:
        """The image's name, for its caption."""
        return str(self.split.ids[index])

    @abstractmethod
    def image(self, index: int) -> Tensor:
        """3 h w, uint8"""

    def input(self, index: int, info: Info, device: torch.device) -> Tensor | None:
        """The network's input, for inspecting hams and spectra; None where it is not a single tensor."""
        return None

    @abstractmethod
    def predict(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Any:
        """The network's prediction for the image."""

    @abstractmethod
    def judge(self, index: int, prediction: Any) -> float:
        """The `metric` of a prediction."""

    @abstractmethod
    def row(self, index: int, predictions: Mapping[str, Any], note: str = "") -> list[CaptionedImage]:
        """The image with its ground truth, then the predictions by network name; `note` follows the image's name."""

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        """The meaning of the colours."""
        return []

    def context(self, net: nn.Module) -> str | None:
        """The dotted name of the network's context, None where it has none."""
        return None
