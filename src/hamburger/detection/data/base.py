"""The detection data set interface and registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.registry import Registry
from hamburger.training.datasets import Colour, create_from_registry


class Scene(NamedTuple):
    """One image and its m objects."""

    image: Tensor  # 3 h w, uint8, RGB
    boxes: Tensor  # m 4, float32: left, top, right, bottom in pixels; right and bottom are exclusive
    labels: Tensor  # m, int64, 0 ... k - 1
    masks: Tensor  # m h w, bool
    areas: Tensor  # m, float64: by which objects count as small or large
    crowd: Tensor  # m, bool: groups, which are neither trained on nor scored

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self)

    def to(self, device: torch.device) -> Scene:
        return Scene(*(each.to(device) for each in self))


class DetectionSet:
    """One split of a data set. `data[i]` reads (or generates) the i-th scene; the same i gives the same bits."""

    name: str
    split: str
    ids: Sequence[str]
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]  # one per class
    digest: str = ""  # hash of the annotations; empty if name, split and options decide everything

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Scene:
        raise NotImplementedError

    def problems(self) -> list[str]:
        """Every defect, found by reading the whole split, each with its path or id."""
        return []


# constructors take (split, root=..., **options); generated sets take no root
detection_sets: Registry[DetectionSet] = Registry("detection set")


def create_detection_set(name: str, split: str, root: str | Path | None = None, **options: Any) -> DetectionSet:
    """The named set's split. `root` is the folder of a set in files; a generated set takes none."""
    return create_from_registry(detection_sets, name, split, root, **options)


def find_boxes(masks: Tensor) -> Tensor:
    """The smallest boxes around non-empty masks.   m h w   ->   m 4, float32, right and bottom exclusive"""
    sides = []
    for axis in (2, 1):  # columns, then rows
        touched = masks.any(3 - axis).to(torch.uint8)  # m w, then m h
        first = touched.argmax(1)
        last = touched.shape[1] - touched.flip(1).argmax(1)
        sides.append((first, last))
    (left, right), (top, bottom) = sides
    return torch.stack([left, top, right, bottom], 1).float()
