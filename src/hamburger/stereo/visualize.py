"""Stereo in a report: left image, true disparity, and each network's disparity and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hamburger.stereo.data import UNKNOWN, StereoSample
from hamburger.stereo.evaluate import BOUNDS, DisparityErrors, mean_errors
from hamburger.stereo.predict import UNKNOWN_COLOUR, colour_disparity, predict_disparity
from hamburger.training.task import Score
from hamburger.training.task_outputs import CaptionedImage, Legend, Visualizer

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info

WITHIN_1_COLOUR, WITHIN_3_COLOUR, OVER_3_COLOUR = (222, 222, 216), (230, 159, 0), (213, 94, 0)


class StereoVisualizer(Visualizer):
    score = Score("epe", "EPE", "px", higher=False)
    each = 4
    images = "whole pairs, disparities from dark (far) to light (near) on one scale for a row, unknown ones grey"
    sample: Callable[[int], StereoSample]

    def image(self, index: int) -> Tensor:
        return self.sample(index).left

    def answer(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Tensor:
        sample = self.sample(index)
        return predict_disparity(net, info, device, sample.left, sample.right)

    def judge(self, index: int, answer: Tensor) -> float:
        means = self._errors(index, answer)
        return 0.0 if means is None else means[0]

    def _errors(self, index: int, answer: Tensor) -> tuple[float, float, float] | None:
        errors = DisparityErrors()
        errors.update(answer, self.sample(index).disparity)
        return mean_errors(errors.all)

    def row(self, index: int, answers: Mapping[str, Tensor], note: str = "") -> list[CaptionedImage]:
        truth = self.sample(index).disparity
        highest = float(truth.max())
        images = [
            CaptionedImage(self.image(index), f"{self.name(index)}, left{note}"),
            CaptionedImage(colour_disparity(truth, highest), f"true disparity, up to {highest:.0f} px", drawn=True),
        ]
        for name, disparity in answers.items():
            means = self._errors(index, disparity)
            epe = "" if means is None else f"EPE {means[0]:.2f} px, {100 * means[2]:.1f} % above 3 px"
            images.append(CaptionedImage(colour_disparity(disparity.clamp_min(1e-3), highest), name, drawn=True))
            images.append(CaptionedImage(colour_errors(disparity, truth), f"errors, {epe}", drawn=True))
        return images

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        return [
            [
                (WITHIN_1_COLOUR, "within 1 px"),
                (WITHIN_3_COLOUR, "1 ... 3 px off"),
                (OVER_3_COLOUR, "more than 3 px off"),
                (UNKNOWN_COLOUR, "unknown"),
            ]
        ]


def colour_errors(disparity: Tensor, truth: Tensor) -> Tensor:
    """The error of each known pixel in one of three colours.   h w, h w   ->   3 h w, uint8"""
    error = (disparity - truth).abs()
    category = torch.stack([error > bound for bound in BOUNDS]).sum(0)
    colours = torch.tensor([WITHIN_1_COLOUR, WITHIN_3_COLOUR, OVER_3_COLOUR, UNKNOWN_COLOUR], dtype=torch.uint8)
    return colours[torch.where(truth == UNKNOWN, 3, category)].movedim(2, 0)
