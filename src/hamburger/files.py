"""Atomic writes, locks and JSON lines."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hamburger.errors import DataError


@contextmanager
def open_atomically(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file next to the target, renamed when the block ends: no reader ever sees half a file.

    With `durable`, the file is synced to disk before it is renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.chmod(0o644)  # mkstemp makes it readable by the owner only
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file next to the target, then rename it."""
    with open_atomically(path) as file:
        file.write(content)


def write_durably(path: Path, content: bytes | memoryview, *, previous: Path | None = None) -> None:
    """As `write_atomically`, and synced to disk when this returns, so that it survives a power failure.

    Where `previous` is given, the old file is renamed to it: at every moment at least one of the two is complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")  # a fixed name: a leftover of a killed process is reused
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
    """Sync the entries of a folder to disk; not the content of its files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def one_at_a_time(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Let one process at a time into the block, of all that use this file; call `waiting` before having to wait.

    The lock ends with its process, also in a crash. Systems without file locks do not wait.
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
        except (BlockingIOError, PermissionError):  # held by another process: systems raise one or the other
            waiting()
            fcntl.lockf(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield


def read_json_lines(path: Path, call: str) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; none where there is no file. `call` starts error messages."""
    rows: list[dict[str, Any]] = []
    if path.exists():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                rows.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                raise DataError(
                    f"{call}: line {number} of {path} is not a JSON object; fix it or name another file"
                ) from None
    return rows


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def check_writable(path: Path) -> None:
    """Create the folder and raise where a file cannot be written, before hours of work."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(f"{path} cannot be written: part of its path is a file; name a folder") from None
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    handle, probe = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    Path(probe).unlink()
