"""Eq. 13 in two readings that differ: a claim about it is judged by both, so that a reader sees where they disagree."""

from __future__ import annotations

from typing import NamedTuple


class Reading(NamedTuple):
    """`grad` as calls name it, `cell` as grids do, `field` as rows do, `said` as a sentence does."""

    suffix: str
    grad: str
    cell: str
    field: str
    said: str

    def id(self, name: str) -> str:
        return name + self.suffix


CODE = Reading(
    "", "one-step", "one-step", "one_step", "the one-step gradient of the authors' code (the last codes alone)"
)
EQUATION = Reading(
    "-equation", "truncated:1", "truncated1", "truncated1", "the one-step gradient of Eq. 13 (the whole last sweep)"
)
READINGS = (CODE, EQUATION)
