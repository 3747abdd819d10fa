"""The stereo data set interface and registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from hamburger.registry import Registry
from hamburger.training.datasets import create_from

UNKNOWN = 0.0  # a disparity of zero is a point infinitely far away, which no such set measures


class StereoSample(NamedTuple):
    """`left`, `right`: 3 h w, uint8, RGB.   `disparity`: h w, float32, pixels, 0 where unknown.

    `seen`: h w, bool, where the right camera sees the left pixel too; None where nobody knows, or nobody asked.
    """

    left: Tensor
    right: Tensor
    disparity: Tensor
    seen: Tensor | None = None


class StereoSet:
    """One split of one set of pairs. `data[i]` reads (or renders) the i-th; the same i gives the same bits.

    `shrink`: so many pixels of the original, along each side, are one pixel here, of disparities and errors too.
    """

    name: str
    split: str
    ids: Sequence[str]
    shrink: int = 1

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> StereoSample:
        if not 0 <= index < len(self):  # also what ends a plain for loop
            raise IndexError(f"{self.name}: there are {len(self)} pairs, index {index} is none of them")
        return self.read(index, occlusions=True)

    def read(self, index: int, *, occlusions: bool) -> StereoSample:
        """`seen` only where `occlusions` are asked for: training does not need them, and they may cost a file."""
        raise NotImplementedError


# constructors take (split, root=..., **options); embedded sets take no root
stereo_sets: Registry[StereoSet] = Registry("stereo set")


# ----------------------------------------------------------------------------------------------------------------------
# One call from a name, a split and a folder to a set of stereo pairs.


def create_stereo_set(name: str, split: str, root: str | Path | None = None, **options: Any) -> StereoSet:
    """The named set's split. `root` is the folder of a set that lies in files; an embedded set takes none."""
    return create_from(stereo_sets, name, split, root, **options)
