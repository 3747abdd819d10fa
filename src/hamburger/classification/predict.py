"""Predictions of a classifier: of image files for `ham predict`, of a split's images for `ham report`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.classification.data.batches import to_model_input
from hamburger.inference.predict_files import FilePrediction, FilePredictor, read_square
from hamburger.insertion.inserted import InsertedContext
from hamburger.training.supervised import check_prediction
from hamburger.training.task import Metric
from hamburger.training.visualizer import CaptionedImage, Visualizer


class ClassificationPredictor(FilePredictor):
    columns = ("image", "class", "probability", "then")

    @torch.inference_mode()
    def __call__(self, *paths: Path) -> FilePrediction:
        (path,) = paths
        pixels = read_square(path, self.info.model["size"])
        logits = check_prediction("logits", self.net(to_model_input(pixels[None].to(self.device)))[0].float())
        probabilities = logits.softmax(0).tolist()
        ranked = sorted(zip(self.info.classes, probabilities, strict=True), key=lambda item: -item[1])
        (name, probability), *others = ranked
        row = {"class": name, "probability": probability, "probabilities": dict(ranked)}
        return FilePrediction(
            row, (name, f"{probability:.1%}", ", ".join(f"{other} {value:.1%}" for other, value in others[:2]))
        )

    def settings(self) -> dict[str, Any]:
        size = self.info.model["size"]
        return {**super().settings(), "protocol": f"the largest square in the middle, {size} x {size}"}


class ClassificationVisualizer(Visualizer):
    """Draws each image with its true class and the predictions of the networks."""

    metric = Metric("probability", "the probability of the true class")
    each = 12
    images = "one view"

    def name(self, index: int) -> str:
        return str(self.split.classes[int(self.split.labels[index])])

    def image(self, index: int) -> Tensor:
        return torch.tensor(self.split.images[index])

    def input(self, index: int, info: Info, device: torch.device) -> Tensor:
        return to_model_input(self.image(index)[None].to(device))

    @torch.no_grad()
    def predict(self, net: nn.Module, info: Info, device: torch.device, index: int) -> list[float]:
        """Return the probability of each class."""
        probabilities: list[float] = net(self.input(index, info, device))[0].float().softmax(0).tolist()
        return probabilities

    def judge(self, index: int, probabilities: list[float]) -> float:
        return probabilities[int(self.split.labels[index])]

    def row(self, index: int, predictions: Mapping[str, list[float]], note: str = "") -> list[CaptionedImage]:
        lines = [f"true: {self.name(index)}{note}"]
        for name, probabilities in predictions.items():
            best = max(range(len(probabilities)), key=probabilities.__getitem__)
            lines.append(f"{name}: {self.split.classes[best]} {probabilities[best]:.0%}")
        return [CaptionedImage(self.image(index), "\n".join(lines))]

    def context(self, net: nn.Module) -> str | None:
        return next((name for name, module in net.named_modules() if isinstance(module, InsertedContext)), None)
