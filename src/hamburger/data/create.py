"""One call from a name, a split and a folder to a data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from hamburger.data.base import SegmentationSet, datasets
from hamburger.errors import OptionError
from hamburger.registry import Registry, options_of

T = TypeVar("T")


def create_dataset(name: str, split: str, root: str | Path | None = None, **options: Any) -> SegmentationSet:
    """The named set's split. `root` is the folder of a set that lies in files; an embedded set takes none."""
    return opened(datasets, name, split, root, options)


def opened(sets: Registry[T], name: str, split: str, root: str | Path | None, options: Mapping[str, Any]) -> T:
    """`create_dataset`, of any kind of set."""
    if "root" not in options_of(sets[name]):
        if root is not None:
            raise OptionError(
                f"{sets.kind} '{name}' is generated and reads no folder, but was given {root}; leave it out"
            )
        return sets.create(name, split, **options)
    if root is None:
        raise OptionError(f"{sets.kind} '{name}' needs its folder: root= in Python, --data DIR on the command line")
    return sets.create(name, split, root=Path(root), **options)
