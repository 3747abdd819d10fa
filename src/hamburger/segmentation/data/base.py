"""The segmentation data set interface and registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hamburger.registry import Registry
from hamburger.training.datasets import create_from
from hamburger.training.packed_images import Colour, Sample


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


# ----------------------------------------------------------------------------------------------------------------------
# One call from a name, a split and a folder to a data set.


def create_dataset(name: str, split: str, root: str | Path | None = None, **options: Any) -> SegmentationSet:
    """The named set's split. `root` is the folder of a set that lies in files; an embedded set takes none."""
    return create_from(datasets, name, split, root, **options)
