"""One call from a name, a split and a folder to a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hamburger.data.base import SegmentationSet, datasets
from hamburger.errors import OptionError
from hamburger.registry import options_of


def create_dataset(name: str, split: str, root: str | Path | None = None, **options: Any) -> SegmentationSet:
    """The named set's split. `root` is the folder of a set that lies in files; an embedded set takes none."""
    if "root" not in options_of(datasets[name]):
        if root is not None:
            raise OptionError(f"dataset '{name}' is generated and reads no folder, but was given {root}; leave it out")
        return datasets.create(name, split, **options)
    if root is None:
        raise OptionError(f"dataset '{name}' needs its folder: root= in Python, --data DIR on the command line")
    return datasets.create(name, split, root=Path(root), **options)
