"""`classes.txt`: the class names of a data folder, with colours if a person likes."""

from __future__ import annotations

from pathlib import Path

from hamburger.data.base import Colour
from hamburger.data.subset import MOST_CLASSES
from hamburger.errors import DataError


def read_classes(path: Path) -> tuple[list[str], dict[str, Colour | None]]:
    """Names in the order of their numbers, and the colour of each, or None.

    A line is a name, which may hold spaces, and after it nothing or three numbers 0 ... 255.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(
            f"{path}: missing; it names the classes, one a line, in the order of their label values"
        ) from None
    except (OSError, UnicodeDecodeError) as broken:
        raise DataError(f"{path}: no readable text ({broken})") from None
    colours: dict[str, Colour | None] = {}
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            continue
        colour = None
        if len(words) > 3 and all(word.isdecimal() for word in words[-3:]):
            r, g, b = (int(word) for word in words[-3:])
            if max(r, g, b) > 255:
                raise DataError(f"{path}, line {number}: colours are three numbers 0 ... 255, got {line.strip()!r}")
            words, colour = words[:-3], (r, g, b)
        name = " ".join(words)
        if name in colours:
            raise DataError(f"{path}, line {number}: class '{name}' is named twice")
        colours[name] = colour
    if not 1 <= len(colours) <= MOST_CLASSES:
        raise DataError(f"{path}: there must be 1 ... {MOST_CLASSES} classes, found {len(colours)}")
    return list(colours), colours
