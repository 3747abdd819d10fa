"""A score as a value: the field that holds it, what people call it, its unit, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

PERCENT = "%"


@dataclass(frozen=True)
class Score:
    """`Score("miou", "mIoU")` is a share between 0 and 1, shown in percent; `Score("epe", "EPE", "px", higher=False)`
    is in pixels, and less of it is better. `among`: the field that says of how many of the `images` a score is, where
    not all of them have what it needs.
    """

    name: str  # of the field in result.json, metrics.jsonl and rows
    words: str
    unit: str = PERCENT
    higher: bool = True
    among: str | None = None

    def among_images(self, result: Mapping[str, Any], member: str) -> Score:
        """This score named for one result: `EPE seen by both (2 of 4 pairs)` where only some images have it."""
        count, images = result.get(self.among or ""), result.get("images")
        if count is None or count == images:
            return self
        return replace(self, words=f"{self.words} ({count} of {images} {member}s)")

    def better(self, one: float, other: float) -> bool:
        return one > other if self.higher else one < other

    @property
    def scale(self) -> int:
        return 100 if self.unit == PERCENT else 1

    @property
    def heading(self) -> str:
        return f"{self.words}, {self.unit}" if self.unit else self.words

    @property
    def points(self) -> str:
        """What a difference is counted in."""
        return "points" if self.unit == PERCENT else self.unit or "more"

    def shown(self, value: float, digits: int = 2) -> str:
        return f"{self.scale * value:.{digits}f}"

    def signed(self, value: float) -> str:
        return f"{self.scale * value:+.2f}"

    def spoken(self, value: float) -> str:
        """`mIoU 71.20`, `EPE 1.25 px`."""
        unit = "" if self.unit in (PERCENT, "") else f" {self.unit}"
        return f"{self.words} {self.shown(value)}{unit}"
