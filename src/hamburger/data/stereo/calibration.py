"""`calib.txt` of Middlebury 2014: lines such as `width=2964`."""

from __future__ import annotations

from pathlib import Path

from hamburger.errors import DataError


def read_calibration(path: Path) -> dict[str, float]:
    """The numbers by name; matrices are left out."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as broken:
        raise DataError(f"{path}: cannot be read ({broken})") from None
    found: dict[str, float] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not value.strip().startswith("["):
            try:
                found[name.strip()] = float(value)
            except ValueError:
                raise DataError(f"{path}: '{line.strip()}' is no number; lines are such as width=2964") from None
    return found
