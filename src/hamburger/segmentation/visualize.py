"""Images of a report on segmentation: image, label, predictions and errors side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hamburger.segmentation.data import IGNORE, Sample
from hamburger.segmentation.predict import Predictor
from hamburger.training.image_files import normalise
from hamburger.training.task import Score
from hamburger.training.task_outputs import CaptionedImage, Legend, Visualizer

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info

RIGHT, WRONG, UNLABELLED_COLOUR = (222, 222, 216), (213, 94, 0), (150, 150, 150)
CONTEXT = "head.context"


class SegmentationVisualizer(Visualizer):
    score = Score("right", "the share of labelled pixels that are right")
    images = "single scale, whole image"
    sample: Callable[[int], Sample]

    def image(self, index: int) -> Tensor:
        return self.sample(index).image

    def input(self, index: int, info: Info, device: torch.device) -> Tensor:
        return normalise(self.image(index).to(device), info.mean, info.std)[None]

    def answer(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Tensor:
        return Predictor(net, info, device)(self.image(index))

    def judge(self, index: int, answer: Tensor) -> float:
        return measure_accuracy(answer, self.sample(index).label)

    def row(self, index: int, answers: Mapping[str, Tensor], note: str = "") -> list[CaptionedImage]:
        label = self.sample(index).label
        first = CaptionedImage(self.image(index), self.name(index) + note)
        pictures = [first, CaptionedImage(self._colour(label), "label", drawn=True)]
        for name, prediction in answers.items():
            pictures.append(CaptionedImage(self._colour(prediction), name, drawn=True))
            words = f"errors, {100 * measure_accuracy(prediction, label):.1f} % right"
            pictures.append(CaptionedImage(draw_errors(prediction, label), words, drawn=True))
        return pictures

    def _colour(self, label: Tensor) -> Tensor:
        """Draw labels in the colours of the data set.   h w   ->   3 h w"""
        colours = torch.tensor([UNLABELLED_COLOUR] * 256, dtype=torch.uint8)
        colours[: len(self.split.palette)] = torch.tensor(self.split.palette, dtype=torch.uint8)
        return colours[label.long()].movedim(2, 0)

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        present = sorted({int(k) for i in indices for k in self.sample(i).label.unique() if k != IGNORE})
        classes = [(self.split.palette[k], self.split.classes[k]) for k in present]
        return [classes, [(RIGHT, "right"), (WRONG, "wrong"), (UNLABELLED_COLOUR, "unlabelled, not counted")]]

    def context(self, net: nn.Module) -> str | None:
        return CONTEXT if CONTEXT in dict(net.named_modules()) else None


def measure_accuracy(prediction: Tensor, label: Tensor) -> float:
    """Return the share of labelled pixels that are correct; 1 if no pixel is labelled."""
    labelled = label != IGNORE
    correct = (prediction == label) & labelled
    return float(correct.sum() / labelled.sum()) if labelled.any() else 1.0


def draw_errors(prediction: Tensor, label: Tensor) -> Tensor:
    """Draw where the prediction is right, wrong or unlabelled.   h w, h w   ->   3 h w"""
    kind = torch.where(label == IGNORE, 2, (prediction != label).long())
    return torch.tensor([RIGHT, WRONG, UNLABELLED_COLOUR], dtype=torch.uint8)[kind].movedim(2, 0)
