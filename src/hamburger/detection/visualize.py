"""Detection in a report: scenes with their true objects, and with those that networks detect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hamburger.detection.data import Scene
from hamburger.detection.predict import MIN_SCORE, PROTOCOL, Objects, detect_objects, draw_objects
from hamburger.training.task import Score
from hamburger.training.task_outputs import CaptionedImage, Legend, Visualizer

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info

MIN_OVERLAP = 0.5  # IoU of masks from which on a detection of the same class counts as correct


class ObjectVisualizer(Visualizer):
    score = Score("f1", "F1, the harmonic mean of how many objects are found and how many found ones are right")
    each = 4
    images = (
        f"{PROTOCOL.format(MIN_SCORE)}, each with its class and score, found where masks of one class overlap by "
        f"{MIN_OVERLAP:g} or more"
    )
    sample: Callable[[int], Scene]

    def image(self, index: int) -> Tensor:
        return self.sample(index).image

    def answer(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Objects:
        return detect_objects(net, device, self.image(index))

    def judge(self, index: int, answer: Objects) -> float:
        scene = self.sample(index)
        total = len(scene.labels) + len(answer["labels"])
        return 2 * count_found(answer, scene) / total if total else 1.0

    def row(self, index: int, answers: Mapping[str, Objects], note: str = "") -> list[CaptionedImage]:
        scene = self.sample(index)
        count = len(scene.labels)
        truth = {"boxes": scene.boxes, "labels": scene.labels, "masks": scene.masks}
        images = [CaptionedImage(self._draw(index, truth), f"{self.name(index)}, {count} objects{note}")]
        for name, objects in answers.items():
            found = count_found(objects, scene)
            caption = f"{name}: {found} of {count} found, {len(objects['labels']) - found} wrong"
            images.append(CaptionedImage(self._draw(index, objects), caption))
        return images

    def _draw(self, index: int, objects: Objects) -> Tensor:
        pixels = draw_objects(self.image(index), objects, self.split.classes, self.split.palette)
        return torch.from_numpy(pixels.copy()).movedim(-1, 0)

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        present = sorted({label for i in indices for label in self.sample(i).labels.tolist()})
        return [[(self.split.palette[label], self.split.classes[label]) for label in present]]


def count_found(objects: Objects, scene: Scene) -> int:
    """The number of true objects with a detection of their class that overlaps them enough; each counts once."""
    free = torch.ones(len(scene.labels), dtype=torch.bool)
    for label, mask in zip(objects["labels"].tolist(), objects["masks"], strict=True):
        intersections = (scene.masks & mask).flatten(1).sum(1)
        overlaps = intersections / (scene.masks | mask).flatten(1).sum(1).clamp_min(1)
        overlaps = torch.where(free & (scene.labels == label), overlaps, 0.0)
        if len(overlaps) and overlaps.max() >= MIN_OVERLAP:
            free[overlaps.argmax()] = False
    return int((~free).sum())
