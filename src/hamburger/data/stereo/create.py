"""One call from a name, a split and a folder to a set of stereo pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hamburger.data.create import create_from
from hamburger.data.stereo.base import StereoSet, stereo_sets


def create_stereo_set(name: str, split: str, root: str | Path | None = None, **options: Any) -> StereoSet:
    """The named set's split. `root` is the folder of a set that lies in files; an embedded set takes none."""
    return create_from(stereo_sets, name, split, root, **options)
