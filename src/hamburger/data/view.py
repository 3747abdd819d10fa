"""What was found in a data set, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hamburger.data.base import SegmentationSet
from hamburger.data.checks import Findings

if TYPE_CHECKING:
    from rich.table import Table


def summary(data: SegmentationSet, found: Findings) -> Table:
    """Classes with their share of all pixels."""
    from rich.table import Table

    table = Table()
    for heading in ("class", "name", "share"):
        table.add_column(heading, justify="left" if heading == "name" else "right")
    total = max(1, sum(found.pixels))
    for i, (name, pixels) in enumerate(zip(data.classes, found.pixels, strict=False)):
        table.add_row(str(i), name, f"{pixels / total:.2%}" if pixels else "none")
    table.add_row("255", "unlabelled", f"{found.pixels[-1] / total:.2%}")
    return table


def heading(data: SegmentationSet, found: Findings) -> str:
    return f"{data.name}, {data.split}: {len(data):,} images, {sizes(found.sizes)}"


def sizes(found: Mapping[tuple[int, int], int]) -> str:
    """`480 x 360`, or the range where sizes differ; width first, as people say it."""
    if not found:
        return "no size known"
    if len(found) == 1:
        ((h, w),) = found
        return f"{w} x {h}"
    heights, widths = zip(*found, strict=True)
    return f"{min(widths)} ... {max(widths)} x {min(heights)} ... {max(heights)}, {len(found)} sizes"
