"""What data sets of all tasks share: creation by name, class subsets, colours, and a cache of check results."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from hamburger.errors import DataError, OptionError, did_you_mean
from hamburger.files import write_atomically
from hamburger.registry import Registry, options_of
from hamburger.training.image_files import Bytes
from hamburger.training.packed_images import IGNORE, Colour

Set = TypeVar("Set")


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


# ----------------------------------------------------------------------------------------------------------------------
# What all data sets in files share: pairs of image and label, and a table from file values to classes.


def check_root(name: str, root: Path, layouts: str) -> Path:
    """The folder itself, or an error that says what it should hold."""
    if not root.is_dir():
        raise DataError(f"{name}: there is no folder {root}; it should hold {layouts}")
    return root


# ----------------------------------------------------------------------------------------------------------------------
# Some of a data set's classes, by name or number: the others become unlabelled.


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


# ----------------------------------------------------------------------------------------------------------------------
# Colours for label maps, where a data set brings none of its own.


def voc_palette(k: int) -> tuple[Colour, ...]:
    """VOC's colours: the bits of the class number, three at a time, fill red, green and blue from the top."""

    def colour(number: int) -> Colour:
        r = g = b = 0
        for place in range(7, -1, -1):
            r |= (number & 1) << place
            g |= (number >> 1 & 1) << place
            b |= (number >> 2 & 1) << place
            number >>= 3
        return (r, g, b)

    return tuple(colour(number) for number in range(k))


# ----------------------------------------------------------------------------------------------------------------------
# Labels as pictures: palette PNGs for machines, overlays with a legend for eyes.


UNLABELLED: Colour = (224, 224, 192)  # entry 255, as PASCAL VOC draws it


def full_palette(palette: Sequence[Colour], classes: int) -> list[Colour]:
    """256 colours: those given, then those that PASCAL VOC's rule gives to an index; 255 is for unlabelled pixels."""
    given = [(int(r), int(g), int(b)) for r, g, b in palette[:classes]]
    return [*given, *voc_palette(255)[len(given) :], UNLABELLED]


# ----------------------------------------------------------------------------------------------------------------------
# Everything that is wrong with a data set, found before training and listed at once.
#
# All files are read once, by threads. What is found is kept in a small file under the user's cache folder, keyed by
# path, size and time of change, so that the next check reads only what has changed.


SHOWN = 20


class Named(Protocol):
    """What a message needs to know of a set."""

    name: str
    split: str


def listing(data: Named, problems: list[str]) -> str:
    """All in one message: a heading, the first 20, and how many there are beyond."""
    some = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"{data.name}, split '{data.split}': {some}", *(f"  {problem}" for problem in problems[:SHOWN])]
    if len(problems) > SHOWN:
        where = " --data DIR" if hasattr(data, "pairs") or hasattr(data, "folder") else ""  # a set in files
        lines.append(f"  ... and {len(problems) - SHOWN} more; `ham data check {data.name}{where}` lists them all")
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------------------------------------
# What was found in files, kept in the user's cache folder, so that the next look reads only what has changed.


VERSION = 1  # of what is kept
Row = dict[str, Any]


def remembered(
    look: Callable[[int], Row],
    stamps: Sequence[str],
    *,
    key: str | None,
    after: Callable[[], object] | None = None,
) -> list[Row]:
    """`look(i)` for every sample, by threads, unless a row of the same stamp is known; `key` None keeps nothing.

    A row has a "problem", None where the sample is sound. `after` is called once per sample, for progress.
    """
    store = None if key is None else _store(key)
    known = _read(store)

    def one(index: int) -> Row:
        found = known.get(stamps[index]) or look(index)
        if after is not None:
            after()
        return found

    with ThreadPoolExecutor(min(16, (os.cpu_count() or 2) + 2)) as pool:
        found = list(pool.map(one, range(len(stamps))))
    # what is sound is kept; what is not is looked at again, since its cure need not change the file
    kept = {stamp: row for stamp, row in zip(stamps, found, strict=True) if row["problem"] is None}
    if store is not None and kept != known:
        with suppress(OSError):  # a cache that cannot be written costs time, nothing else
            write_atomically(store, json.dumps(kept).encode())
    return found


def stamp(paths: Iterable[Path | None]) -> str:
    """Paths, sizes and times of change of the files of one sample."""
    return " ".join(_stamp(path) for path in paths)


def _stamp(path: Path | None) -> str:
    try:
        stat = Path(path or "").stat()
    except OSError:
        return f"{path}:missing"
    return f"{path}:{stat.st_size}:{stat.st_mtime_ns}"


def _store(key: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "hamburger" / "checks" / f"{hashlib.sha256(f'{VERSION} {key}'.encode()).hexdigest()[:32]}.json"


def _read(store: Path | None) -> dict[str, Row]:
    if store is None:
        return {}
    try:
        return dict(json.loads(store.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
