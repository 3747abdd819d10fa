"""The stereo data set interface and registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from hamburger.registry import Registry
from hamburger.training.datasets import create_from_registry

UNKNOWN = 0.0  # as a disparity: 0 would be a point infinitely far away, which no such set measures


class StereoSample(NamedTuple):
    """One rectified pair."""

    left: Tensor  # 3 h w, uint8, RGB
    right: Tensor  # 3 h w, uint8, RGB
    disparity: Tensor  # h w, float32, pixels, 0 where unknown
    seen: Tensor | None = None  # h w, bool: the right camera sees the left pixel too; None if unknown or not requested


class StereoSet:
    """One split of a set of pairs. `data[i]` reads (or renders) the i-th; the same i gives the same bits.

    `shrink`: images are smaller than the originals by this factor, and so are disparities and their errors.
    """

    name: str
    split: str
    ids: Sequence[str]
    shrink: int = 1

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> StereoSample:
        if not 0 <= index < len(self):  # this also ends a plain for loop
            raise IndexError(f"{self.name}: index {index} is out of range; there are {len(self)} pairs")
        return self.read(index, occlusions=True)

    def read(self, index: int, *, occlusions: bool) -> StereoSample:
        """The i-th pair, with `seen` only if `occlusions`: training does not need it, and it may cost a file."""
        raise NotImplementedError


# constructors take (split, root=..., **options); generated sets take no root
stereo_sets: Registry[StereoSet] = Registry("stereo set")


def create_stereo_set(name: str, split: str, root: str | Path | None = None, **options: Any) -> StereoSet:
    """The named set's split. `root` is the folder of a set in files; a generated set takes none."""
    return create_from_registry(stereo_sets, name, split, root, **options)
