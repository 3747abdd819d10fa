"""Classification in a report: images with their true class, and what each network takes them for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hamburger.classification.evaluate import to_model_input
from hamburger.insertion.inserted import InsertedContext
from hamburger.training.scores import Score
from hamburger.training.visualizer import CaptionedImage, Visualizer

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info


class ClassShowing(Visualizer):
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
        """The probability of each class."""
        chances: list[float] = net(self.input(index, info, device))[0].float().softmax(0).tolist()
        return chances

    def judge(self, index: int, answer: list[float]) -> float:
        return answer[int(self.split.labels[index])]

    def row(self, index: int, answers: Mapping[str, list[float]], note: str = "") -> list[CaptionedImage]:
        said = [f"true: {self.name(index)}{note}"]
        for name, chances in answers.items():
            taken = max(range(len(chances)), key=chances.__getitem__)
            said.append(f"{name}: {self.split.classes[taken]} {chances[taken]:.0%}")
        return [CaptionedImage(self.image(index), "\n".join(said))]

    def context(self, net: nn.Module) -> str | None:
        return next((name for name, module in net.named_modules() if isinstance(module, InsertedContext)), None)
