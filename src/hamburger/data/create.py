"""One call from a name, a split and a folder to a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from hamburger.data.base import SegmentationSet, datasets
from hamburger.errors import OptionError
from hamburger.registry import Registry, options_of

Set = TypeVar("Set")


def create_dataset(name: str, split: str, root: str | Path | None = None, **options: Any) -> SegmentationSet:
    """The named set's split. `root` is the folder of a set that lies in files; an embedded set takes none."""
    return create_from(datasets, name, split, root, **options)


def create_from(known: Registry[Set], name: str, split: str, root: str | Path | None = None, **options: Any) -> Set:
    """The same from any registry of sets."""
    if "root" not in options_of(known[name]):
        if root is not None:
            raise OptionError(
                f"{known.kind} '{name}' is generated and reads no folder, but was given {root}; leave it out"
            )
        return known.create(name, split, **options)
    if root is None:
        raise OptionError(f"{known.kind} '{name}' needs its folder: root= in Python, --data DIR on the command line")
    return known.create(name, split, root=Path(root), **options)
