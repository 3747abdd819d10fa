"""One call from a name, a split and a folder to a detection set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hamburger.data.create import create_from
from hamburger.data.detection.base import DetectionSet, detection_sets


def create_detection_set(name: str, split: str, root: str | Path | None = None, **options: Any) -> DetectionSet:
    """The named set's split. `root` is the folder of a set that lies in files; an embedded set takes none."""
    return create_from(detection_sets, name, split, root, **options)
