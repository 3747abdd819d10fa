"""Stereo in a report: left image, true disparity, and of each network its disparity and how far it is off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hamburger.stereo.data import UNKNOWN, StereoSample
from hamburger.stereo.evaluate import BOUNDS, DisparityErrors, mean_errors
from hamburger.stereo.predict import UNKNOWN_COLOUR, coloured, disparity_of
from hamburger.training.scores import Score
from hamburger.training.task import Legend, Picture, Showing

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info

FINE, OFF, WRONG = (222, 222, 216), (230, 159, 0), (213, 94, 0)


class StereoShowing(Showing):
    score = Score("epe", "EPE", "px", higher=False)
    each = 4
    images = "whole pairs, disparities from dark (far) to light (near) on one scale for a row, grey what nobody knows"
    sample: Callable[[int], StereoSample]

    def image(self, index: int) -> Tensor:
        return self.sample(index).left

    def answer(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Tensor:
        sample = self.sample(index)
        return disparity_of(net, info, device, sample.left, sample.right)

    def judge(self, index: int, answer: Tensor) -> float:
        means = self._errors(index, answer)
        return 0.0 if means is None else means[0]

    def _errors(self, index: int, answer: Tensor) -> tuple[float, float, float] | None:
        errors = DisparityErrors()
        errors.update(answer, self.sample(index).disparity)
        return mean_errors(errors.all)

    def row(self, index: int, answers: Mapping[str, Tensor], note: str = "") -> list[Picture]:
        truth = self.sample(index).disparity
        highest = float(truth.max())
        made = [
            Picture(self.image(index), f"{self.name(index)}, left{note}"),
            Picture(coloured(truth, highest), f"true disparity, up to {highest:.0f} px", drawn=True),
        ]
        for name, found in answers.items():
            means = self._errors(index, found)
            epe = "" if means is None else f"EPE {means[0]:.2f} px, {100 * means[2]:.1f} % above 3 px"
            made.append(Picture(coloured(found.clamp_min(1e-3), highest), name, drawn=True))
            made.append(Picture(off(found, truth), f"errors, {epe}", drawn=True))
        return made

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        return [
            [(FINE, "within 1 px"), (OFF, "1 ... 3 px off"), (WRONG, "more than 3 px off"), (UNKNOWN_COLOUR, "unknown")]
        ]


def off(disparity: Tensor, truth: Tensor) -> Tensor:
    """h w, h w   ->   3 h w: how far each known pixel is off, in three classes"""
    error = (disparity - truth).abs()
    kind = torch.stack([error > bound for bound in BOUNDS]).sum(0)
    colours = torch.tensor([FINE, OFF, WRONG, UNKNOWN_COLOUR], dtype=torch.uint8)
    return colours[torch.where(truth == UNKNOWN, 3, kind)].movedim(2, 0)
