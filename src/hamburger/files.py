"""Files that are either complete or not there."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hamburger.errors import DataError


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, then rename: a reader never sees half a file, nor does a crash leave one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(partial).chmod(0o644)  # mkstemp's own mode shuts out every other reader
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def write_durably(path: Path, content: bytes | memoryview, *, previous: Path | None = None) -> None:
    """As `write_atomically`, and on the disk when this returns, so that it also survives a loss of power.

    The file that `path` was becomes `previous` where that is given: at every moment at least one of them is whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")  # one name, so that what a kill leaves is used again
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if previous is not None and path.exists():
        path.replace(previous)
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk; the files' content is their own matter."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def one_at_a_time(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """One process at a time inside, of all that name this file; `waiting` is called where another one is there now.

    The lock dies with its process, so that a crash hands it on. Where a system has no locks, nobody waits.
    """
    try:
        import fcntl
    except ImportError:  # not on this system
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # held: systems differ in how they say it
            waiting()
            fcntl.lockf(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield


def read_json_lines(path: Path, call: str) -> list[dict[str, Any]]:
    """One object a line; none where there is no file yet. `call` is who speaks in an error."""
    found: list[dict[str, Any]] = []
    if path.exists():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                found.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                raise DataError(f"{call}: line {number} of {path} is no row; mend it or name another file") from None
    return found


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_atomically(path, csv_text(rows).encode())


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a row, with the fields of all of them; lists and tables inside a row are JSON, so that nothing is lost."""
    fields = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(fields), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        nested = {name: json.dumps(value) for name, value in row.items() if isinstance(value, (list, tuple, dict))}
        writer.writerow({**row, **nested})
    return text.getvalue()


def check_writable(path: Path) -> None:
    """Make the folder and try it, before hours of work end at a closed door."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(f"{path} cannot be written: part of its path is a file; name a folder") from None
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    handle, probe = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    Path(probe).unlink()
