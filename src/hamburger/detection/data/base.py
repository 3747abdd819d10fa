"""The detection data set interface and registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.registry import Registry
from hamburger.training.datasets import create_from
from hamburger.training.packed_images import Colour


class Scene(NamedTuple):
    """`image`: 3 h w, uint8, RGB. Of m objects: `boxes`: m 4, float32, left top right bottom in pixels, right and
    bottom outside;   `labels`: m, int64, 0 ... k - 1;   `masks`: m h w, bool;   `areas`: m, float64, by which objects
    count as small or large;   `crowd`: m, bool, a group that is neither trained on nor scored."""

    image: Tensor
    boxes: Tensor
    labels: Tensor
    masks: Tensor
    areas: Tensor
    crowd: Tensor

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self)

    def to(self, device: torch.device) -> Scene:
        return Scene(*(each.to(device) for each in self))


class DetectionSet:
    """One split of one data set. `data[i]` reads (or generates) the i-th scene; the same i gives the same bits."""

    name: str
    split: str
    ids: Sequence[str]
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]  # one per class
    digest: str = ""  # of what files tell of the objects; nothing where name, split and options tell all

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Scene:
        raise NotImplementedError

    def problems(self) -> list[str]:
        """Every defect found by reading all of it, each with its path or id, not hours later in training."""
        return []


# constructors take (split, root=..., **options); embedded sets take no root
detection_sets: Registry[DetectionSet] = Registry("detection set")


def boxes_of(masks: Tensor) -> Tensor:
    """The smallest boxes around masks, none of which is empty.   m h w   ->   m 4, float32, right and bottom outside"""
    sides = []
    for axis in (2, 1):  # over rows: where it is wide; over columns: where it is high
        touched = masks.any(3 - axis).to(torch.uint8)  # m w, then m h
        first = touched.argmax(1)
        last = touched.shape[1] - touched.flip(1).argmax(1)
        sides.append((first, last))
    (left, right), (top, bottom) = sides
    return torch.stack([left, top, right, bottom], 1).float()


# ----------------------------------------------------------------------------------------------------------------------
# One call from a name, a split and a folder to a detection set.


def create_detection_set(name: str, split: str, root: str | Path | None = None, **options: Any) -> DetectionSet:
    """The named set's split. `root` is the folder of a set that lies in files; an embedded set takes none."""
    return create_from(detection_sets, name, split, root, **options)
