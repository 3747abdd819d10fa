"""Images of a report on classification: each with its true class and the predictions of the networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hamburger.classification.evaluate import to_model_input
from hamburger.insertion.inserted import InsertedContext
from hamburger.training.task import Score
from hamburger.training.task_outputs import CaptionedImage, Visualizer

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info


class ClassificationVisualizer(Visualizer):
    score = Score("probability", "the probability of the true class")
    each = 12
    images = "one view"

    def name(self, index: int) -> str:
        return str(self.split.classes[int(self.split.labels[index])])

    def image(self, index: int) -> Tensor:
        return torch.tensor(self.split.images[index])

    def input(self, index: int, info: Info, device: torch.device) -> Tensor:
        return to_model_input(self.image(index)[None].to(device))

    @torch.no_grad()
    def answer(self, net: nn.Module, info: Info, device: torch.device, index: int) -> list[float]:
        """Return the probability of each class."""
        probabilities: list[float] = net(self.input(index, info, device))[0].float().softmax(0).tolist()
        return probabilities

    def judge(self, index: int, answer: list[float]) -> float:
        return answer[int(self.split.labels[index])]

    def row(self, index: int, answers: Mapping[str, list[float]], note: str = "") -> list[CaptionedImage]:
        lines = [f"true: {self.name(index)}{note}"]
        for name, probabilities in answers.items():
            best = max(range(len(probabilities)), key=probabilities.__getitem__)
            lines.append(f"{name}: {self.split.classes[best]} {probabilities[best]:.0%}")
        return [CaptionedImage(self.image(index), "\n".join(lines))]

    def context(self, net: nn.Module) -> str | None:
        return next((name for name, module in net.named_modules() if isinstance(module, InsertedContext)), None)
