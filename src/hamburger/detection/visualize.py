"""Detection in a report: scenes with their objects, and with those that networks find in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hamburger.detection.data import Scene
from hamburger.detection.predict import PROTOCOL, SCORE, Objects, drawn, objects_in
from hamburger.training.scores import Score
from hamburger.training.task import Legend, Picture, Showing

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info

OVERLAP = 0.5  # of a mask with an object of its class, from which on it is called right


class ObjectShowing(Showing):
    score = Score("f1", "F1, the harmonic mean of how many objects are found and how many found ones are right")
    each = 4
    images = (
        f"{PROTOCOL.format(SCORE)}, each with its class and score, found where masks of one class overlap by "
        f"{OVERLAP:g} or more"
    )
    sample: Callable[[int], Scene]

    def image(self, index: int) -> Tensor:
        return self.sample(index).image

    def answer(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Objects:
        return objects_in(net, device, self.image(index))

    def judge(self, index: int, answer: Objects) -> float:
        scene = self.sample(index)
        named = len(scene.labels) + len(answer["labels"])
        return 2 * right_ones(answer, scene) / named if named else 1.0

    def row(self, index: int, answers: Mapping[str, Objects], note: str = "") -> list[Picture]:
        scene = self.sample(index)
        there = len(scene.labels)
        truth = {"boxes": scene.boxes, "labels": scene.labels, "masks": scene.masks}
        made = [Picture(self._drawn(index, truth), f"{self.name(index)}, {there} objects{note}")]
        for name, found in answers.items():
            right = right_ones(found, scene)
            words = f"{name}: {right} of {there} found, {len(found['labels']) - right} wrong"
            made.append(Picture(self._drawn(index, found), words))
        return made

    def _drawn(self, index: int, objects: Objects) -> Tensor:
        pixels = drawn(self.image(index), objects, self.split.classes, self.split.palette)
        return torch.from_numpy(pixels.copy()).movedim(-1, 0)

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        present = sorted({label for i in indices for label in self.sample(i).labels.tolist()})
        return [[(self.split.palette[label], self.split.classes[label]) for label in present]]


def right_ones(found: Objects, scene: Scene) -> int:
    """How many objects have a detection of their class that overlaps them enough; each counts once."""
    free = torch.ones(len(scene.labels), dtype=torch.bool)
    for label, mask in zip(found["labels"].tolist(), found["masks"], strict=True):
        shared = (scene.masks & mask).flatten(1).sum(1)
        overlaps = shared / (scene.masks | mask).flatten(1).sum(1).clamp_min(1)
        overlaps = torch.where(free & (scene.labels == label), overlaps, 0.0)
        if len(overlaps) and overlaps.max() >= OVERLAP:
            free[overlaps.argmax()] = False
    return int((~free).sum())
