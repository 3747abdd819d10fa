"""Predict the class of image files, with the probability of each class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hamburger.classification.evaluate import to_model_input
from hamburger.inference.predict_files import read_square
from hamburger.training.task_outputs import FilePrediction, FilePredictor

PROTOCOL = "the largest square in the middle, {size} x {size}"


class ClassificationPredictor(FilePredictor):
    columns = ("image", "class", "probability", "then")

    @torch.inference_mode()
    def __call__(self, *paths: Path) -> FilePrediction:
        (path,) = paths
        pixels = read_square(path, self.info.extra["size"])
        probabilities = self.net(to_model_input(pixels[None].to(self.device)))[0].float().softmax(0).tolist()
        ranked = sorted(zip(self.info.classes, probabilities, strict=True), key=lambda item: -item[1])
        (name, probability), *others = ranked
        row = {"class": name, "probability": probability, "probabilities": dict(ranked)}
        return FilePrediction(
            row, (name, f"{probability:.1%}", ", ".join(f"{other} {value:.1%}" for other, value in others[:2]))
        )

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "protocol": PROTOCOL.format(size=self.info.extra["size"])}
