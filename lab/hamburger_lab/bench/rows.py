"""A result file that a later run completes: equal measurements are replaced, all others stay."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hamburger.errors import OptionError

KEY = ("module", "n", "dtype", "batch", "channels", "device")


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[field] for field in KEY)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none where there is no such file yet."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(json.loads(line))
            key(rows[-1])
        except (ValueError, KeyError, TypeError):
            raise OptionError(
                f"bench table3: line {number} of {path} is no row of this bench, so nothing can be appended; "
                "name another file, or leave --append to write it anew"
            ) from None
    return rows


def merged(old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Old rows in their places, each with the newest measurement of the same thing, then what is new altogether."""
    found = {key(row): row for row in old}
    found.update((key(row), row) for row in new)
    return list(found.values())
