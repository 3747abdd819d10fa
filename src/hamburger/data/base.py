"""What a data set promises: images, labels, class names, and a list of everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from hamburger.registry import Registry

IGNORE = 255
Colour = tuple[int, int, int]


class Sample(NamedTuple):
    """`image`: 3 h w, uint8, RGB.    `label`: h w, uint8, 0 ... k - 1, and 255 where unlabelled."""

    image: Tensor
    label: Tensor

    @property
    def nbytes(self) -> int:
        return self.image.nbytes + self.label.nbytes


class SegmentationSet:
    """One split of one data set. `data[i]` reads (or generates) the i-th sample; the same i gives the same bits."""

    name: str
    split: str
    ids: Sequence[str]
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]  # one per class

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError

    def problems(self) -> list[str]:
        """Every defect found by reading all of it, each with its path, not hours later in training."""
        return []


# constructors take (split, root=..., **options); embedded sets take no root
datasets: Registry[SegmentationSet] = Registry("dataset")
