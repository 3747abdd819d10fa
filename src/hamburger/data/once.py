"""Files that are looked at once: what was found is kept under the user's cache folder until a file changes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from hamburger.files import write_atomically

VERSION = 1  # of the kept findings
Row = dict[str, Any]  # what was found of one sample; `problem` is None where it is sound


def look_once(
    meaning: str,
    files: Sequence[Sequence[Path | None]],
    look: Callable[[int], Row],
    *,
    cache: bool = True,
    after: Callable[[], object] | None = None,
) -> list[Row]:
    """`look(i)` for each sample, by threads, where its files have changed since it was last found sound.

    `meaning` says what the files are read as: findings of another meaning are not these. `after` is called once for
    each sample.
    """
    store = _store(meaning) if cache else None
    known = _read(store)
    stamps = [" ".join(_stamp(path) for path in some) for some in files]

    def one(index: int) -> Row:
        found = known.get(stamps[index]) or look(index)
        if after is not None:
            after()
        return found

    with ThreadPoolExecutor(min(16, (os.cpu_count() or 2) + 2)) as pool:
        rows = list(pool.map(one, range(len(files))))
    # what is sound is kept; what is not is looked at again, since its cure need not change the file
    kept = {stamp: row for stamp, row in zip(stamps, rows, strict=True) if row["problem"] is None}
    if store is not None and kept != known:
        with suppress(OSError):  # a cache that cannot be written costs time, nothing else
            write_atomically(store, json.dumps(kept).encode())
    return rows


def _stamp(path: Path | None) -> str:
    try:
        stat = Path(path or "").stat()
    except OSError:
        return f"{path}:missing"
    return f"{path}:{stat.st_size}:{stat.st_mtime_ns}"


def _store(meaning: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(f"{VERSION} {meaning}".encode()).hexdigest()[:32]
    return base / "hamburger" / "checks" / f"{key}.json"


def _read(store: Path | None) -> dict[str, Row]:
    if store is None:
        return {}
    try:
        return dict(json.loads(store.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
