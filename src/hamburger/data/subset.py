"""Some of a data set's classes, by name or number: the others become unlabelled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hamburger.data.base import IGNORE
from hamburger.data.images import Bytes
from hamburger.errors import OptionError, did_you_mean

OUTSIDE = 254  # in a table: no class has this value, and it is not the ignored one either
MOST_CLASSES = 254


def table_of(values: Iterable[int], *, ignored: Iterable[int] = ()) -> Bytes:
    """256 entries: the file value `values[i]` is class i, ignored ones and 255 are 255, all others OUTSIDE."""
    table = np.full(256, OUTSIDE, np.uint8)
    table[[*ignored, IGNORE]] = IGNORE
    for index, value in enumerate(values):
        table[value] = index
    return table


def chosen(call: str, names: Sequence[str], classes: Sequence[str | int] | str | None) -> list[int]:
    """The numbers of the classes a person asked for, in that order; all where nothing was asked.

    `classes`: names or numbers, as a sequence or as one string with commas.
    """
    if classes is None:
        return list(range(len(names)))
    asked: list[str | int] = [part.strip() for part in classes.split(",")] if isinstance(classes, str) else [*classes]
    numbers = [_number(call, names, one) for one in asked]
    if len(set(numbers)) != len(numbers) or not numbers:
        raise OptionError(f"{call}: classes must be different ones, at least one, got {classes!r}")
    return numbers


def _number(call: str, names: Sequence[str], one: str | int) -> int:
    if isinstance(one, str) and one in names:
        return names.index(one)
    text = str(one)
    if not isinstance(one, bool) and text.isdecimal() and int(text) < len(names):
        return int(text)
    raise OptionError(f"{call}: no class {one!r} among numbers 0 ... {len(names) - 1}{did_you_mean(text, names)}")
