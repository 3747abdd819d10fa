"""What was found in files, kept in the user's cache folder, so that the next look reads only what has changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from hamburger.files import write_atomically

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
