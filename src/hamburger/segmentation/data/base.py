"""The segmentation data set interface and registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hamburger.registry import Registry
from hamburger.training.datasets import Colour, Sample, create_from_registry


class SegmentationSet:
    """One split of a data set. `data[i]` reads or generates sample i; the same i always gives the same bits."""

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
        """Read every sample and return one message with its path for each defect."""
        return []


# constructors take (split, root=..., **options); generated sets take no root
datasets: Registry[SegmentationSet] = Registry("dataset")


def create_dataset(name: str, split: str, root: str | Path | None = None, **options: Any) -> SegmentationSet:
    """Return a split of the named data set. `root` is its folder; generated sets take none."""
    return create_from_registry(datasets, name, split, root, **options)
