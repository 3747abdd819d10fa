"""What a task provides to `ham predict`, `ham report` and `ham export`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.training.datasets import Colour
from hamburger.training.task import Score

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info


# -- ham predict -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilePrediction:
    """`row`: fields of summary.json.   `cells`: of the table on the terminal.   `files`: file contents by kind."""

    row: dict[str, Any]
    cells: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


class FilePredictor(ABC):
    """`predictor(path)` reads one image file and predicts it; where `pairs` is set it takes two paths.

    The constructor takes the network, its weights' `Info`, the device, and as keywords the options of `ham predict`
    that apply to the task. `files` maps each kind of output file to a function from the image's name to a path below
    the output folder. With `by_id`, output files are named by the image's file name alone, so these must differ.
    """

    columns: ClassVar[tuple[str, ...]]  # of the table on the terminal
    pairs: ClassVar[bool] = False  # whether it takes two images, LEFT RIGHT
    remedy: ClassVar[str] = "take another --device"  # advice when memory runs out
    files: Mapping[str, Callable[[str], Path]] = {}
    by_id = False

    def __init__(self, net: nn.Module, info: Info, device: torch.device) -> None:
        self.net, self.info, self.device = net.to(device).eval(), info, device

    @abstractmethod
    def __call__(self, *paths: Path) -> FilePrediction:
        """Predict one image; raise InputError where the file cannot be used."""

    def settings(self) -> dict[str, Any]:
        """Fields of summary.json that hold for all images."""
        return {"classes": list(self.info.classes)}

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
        """Remarks on the rows, to print after the table."""
        return ()


# -- ham report --------------------------------------------------------------------------------------------------------


Legend = Sequence[tuple[Colour, str]]


class CaptionedImage(NamedTuple):
    """`pixels`: 3 h w, uint8.   `drawn`: its colours are labels, so shrinking must not blend them."""

    pixels: Tensor
    words: str
    drawn: bool = False


class Visualizer(ABC):
    """Shows images of a split opened by `Task.split`. The same index and weights give the same images."""

    score: ClassVar[Score]  # of one image: finds the images where one network beats another
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
    def answer(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Any:
        """The network's prediction for the image."""

    @abstractmethod
    def judge(self, index: int, answer: Any) -> float:
        """The `score` of a prediction."""

    @abstractmethod
    def row(self, index: int, answers: Mapping[str, Any], note: str = "") -> list[CaptionedImage]:
        """The image with its ground truth, then the predictions by network name; `note` follows the image's name."""

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        """The meaning of the colours."""
        return []

    def context(self, net: nn.Module) -> str | None:
        """The dotted name of the network's context, None where it has none."""
        return None


# -- ham export --------------------------------------------------------------------------------------------------------


Outputs = tuple[Tensor, ...]


class OutputComparison(NamedTuple):
    """Two outputs compared: the largest difference of values, the largest value, and a flag per prediction that is
    the same in both."""

    difference: float
    largest: float
    same: Tensor


def compare_single_output(same: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Outputs, Outputs], OutputComparison]:
    """A comparison for networks with one output; `same` returns a flag per prediction that agrees."""

    def compare(ours: Outputs, theirs: Outputs) -> OutputComparison:
        [a], [b] = ours, theirs
        return OutputComparison(float((a - b).abs().max()), float(a.abs().max()), same(a, b))

    return compare


# whether the largest logit has the same index.   b k *spatial, twice
compare_classes = compare_single_output(lambda ours, theirs: ours.argmax(1) == theirs.argmax(1))


@dataclass(frozen=True)
class ExportSpec:
    """- `size`: default height and width of the example image
    - `inputs`, `outputs`: names; each input is b 3 h w, normalised with the mean and std of `Info`
    - `compare`: compares the outputs of torch and of the exported file
    - `values`, `agreement`: words for the report: what `difference` is of, and what `same` means
    - `predictions`: what the network makes one prediction for, in the plural; `least`: the share that must agree
    - `exported`: the module to export, from the network
    - `reference`: calls the network on the file's inputs; the file must return the same
    - `dynamic`: axes that may be dynamic, if the exporter can; `static_reason`: why the others cannot
    """

    size: tuple[int, int] = (513, 513)
    inputs: tuple[str, ...] = ("image",)
    outputs: tuple[str, ...] = ("logits",)
    compare: Callable[[Outputs, Outputs], OutputComparison] = compare_classes
    values: str = "logits"
    agreement: str = "labels agree"
    predictions: str = "pixels"
    least: float = 0.999
    exported: Callable[[nn.Module], nn.Module] = lambda net: net
    reference: Callable[..., Any] = lambda net, *images: net(*images)
    dynamic: tuple[str, ...] = ("batch", "height", "width")
    static_reason: str = ""


SEGMENTATION_EXPORT = ExportSpec()
