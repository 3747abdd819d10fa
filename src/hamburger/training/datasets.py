"""Shared by the data sets of all tasks: creation by name, class subsets, colours, and cached checks."""

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


def create_from_registry(
    known: Registry[Set], name: str, split: str, root: str | Path | None = None, **options: Any
) -> Set:
    """Return a split of the named data set in a registry. `root` is its folder; generated sets take none."""
    if "root" not in options_of(known[name]):
        if root is not None:
            raise OptionError(
                f"{known.kind} '{name}' is generated and reads no folder, but was given {root}; leave it out"
            )
        return known.create(name, split, **options)
    if root is None:
        raise OptionError(f"{known.kind} '{name}' needs its folder: root= in Python, --data DIR on the command line")
    return known.create(name, split, root=Path(root), **options)


def check_root(name: str, root: Path, layouts: str) -> Path:
    """Return the folder; if it does not exist, raise an error that says what it must contain."""
    if not root.is_dir():
        raise DataError(f"{name}: there is no folder {root}; it must contain {layouts}")
    return root


# -- classes -----------------------------------------------------------------------------------------------------------


OUTSIDE = 254  # in a label table: neither a class nor ignored
MOST_CLASSES = 254


def build_label_table(values: Iterable[int], *, ignored: Iterable[int] = ()) -> Bytes:
    """Return 256 entries: `values[i]` maps to class i, ignored values and 255 to 255, all others to OUTSIDE."""
    table = np.full(256, OUTSIDE, np.uint8)
    table[[*ignored, IGNORE]] = IGNORE
    for index, value in enumerate(values):
        table[value] = index
    return table


def select_classes(call: str, names: Sequence[str], classes: Sequence[str | int] | str | None) -> list[int]:
    """Return the numbers of the requested classes in that order; all if `classes` is None.

    `classes`: names or numbers, as a sequence or a comma-separated string.
    """
    if classes is None:
        return list(range(len(names)))
    requested = [part.strip() for part in classes.split(",")] if isinstance(classes, str) else classes
    numbers = [_find_number(call, names, one) for one in requested]
    if len(set(numbers)) != len(numbers) or not numbers:
        raise OptionError(f"{call}: classes must be different ones, at least one, got {classes!r}")
    return numbers


def _find_number(call: str, names: Sequence[str], one: str | int) -> int:
    if isinstance(one, str) and one in names:
        return names.index(one)
    text = str(one)
    if not isinstance(one, bool) and text.isdecimal() and int(text) < len(names):
        return int(text)
    raise OptionError(f"{call}: no class {one!r} among numbers 0 ... {len(names) - 1}{did_you_mean(text, names)}")


# -- colours -----------------------------------------------------------------------------------------------------------


def voc_palette(k: int) -> tuple[Colour, ...]:
    """Return VOC's colours: the bits of the class number, three at a time, fill red, green and blue from the top."""

    def colour(number: int) -> Colour:
        r = g = b = 0
        for place in range(7, -1, -1):
            r |= (number & 1) << place
            g |= (number >> 1 & 1) << place
            b |= (number >> 2 & 1) << place
            number >>= 3
        return (r, g, b)

    return tuple(colour(number) for number in range(k))


UNLABELLED: Colour = (224, 224, 192)  # entry 255, as PASCAL VOC draws it


def full_palette(palette: Sequence[Colour], classes: int) -> list[Colour]:
    """Return 256 colours: those given, then PASCAL VOC's for the index; 255 is the colour of unlabelled pixels."""
    given = [(int(r), int(g), int(b)) for r, g, b in palette[:classes]]
    return [*given, *voc_palette(255)[len(given) :], UNLABELLED]


# -- checks ------------------------------------------------------------------------------------------------------------
#
# All files are read once, in threads. Results are cached under the user's cache folder by path, size and modification
# time, so that the next check reads only what has changed.


SHOWN = 20


class NamedSplit(Protocol):
    """A split of a data set, as error messages name it."""

    name: str
    split: str


def format_problems(data: NamedSplit, problems: list[str]) -> str:
    """Return one message: a heading, the first 20 problems, and how many more there are."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"{data.name}, split '{data.split}': {count}", *(f"  {problem}" for problem in problems[:SHOWN])]
    if len(problems) > SHOWN:
        where = " --data DIR" if hasattr(data, "pairs") or hasattr(data, "folder") else ""  # a data set of files
        lines.append(f"  ... and {len(problems) - SHOWN} more; `ham data check {data.name}{where}` lists them all")
    return "\n".join(lines)


VERSION = 1  # of the cached rows
Row = dict[str, Any]


def run_cached_checks(
    check: Callable[[int], Row],
    fingerprints: Sequence[str],
    *,
    key: str | None,
    after: Callable[[], object] | None = None,
) -> list[Row]:
    """Return `check(i)` for every sample, run in threads, or the cached row of the same fingerprint.

    A row has a "problem", None if the sample is valid. `key` names the cache; None disables it. `after` is called once
    per sample, for progress.
    """
    cache = None if key is None else _cache_path(key)
    cached = _read_cache(cache)

    def check_or_reuse(index: int) -> Row:
        row = cached.get(fingerprints[index]) or check(index)
        if after is not None:
            after()
        return row

    with ThreadPoolExecutor(min(16, (os.cpu_count() or 2) + 2)) as pool:
        rows = list(pool.map(check_or_reuse, range(len(fingerprints))))
    # only valid samples are cached: a problem may be fixed without changing the file
    valid = {fingerprint: row for fingerprint, row in zip(fingerprints, rows, strict=True) if row["problem"] is None}
    if cache is not None and valid != cached:
        with suppress(OSError):  # a cache that cannot be written only costs time
            write_atomically(cache, json.dumps(valid).encode())
    return rows


def fingerprint_files(paths: Iterable[Path | None]) -> str:
    """Return paths, sizes and modification times of the files of one sample."""
    return " ".join(_fingerprint(path) for path in paths)


def _fingerprint(path: Path | None) -> str:
    try:
        stat = Path(path or "").stat()
    except OSError:
        return f"{path}:missing"
    return f"{path}:{stat.st_size}:{stat.st_mtime_ns}"


def _cache_path(key: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "hamburger" / "checks" / f"{hashlib.sha256(f'{VERSION} {key}'.encode()).hexdigest()[:32]}.json"


def _read_cache(cache: Path | None) -> dict[str, Row]:
    if cache is None:
        return {}
    try:
        return dict(json.loads(cache.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
