"""Atomic writes, locks and JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from hamburger.errors import DataError, NotFiniteError, shorten

MAX_FLOAT = 1e40  # more than float32 can hold; sums of squares of such numbers are finite
PARTIAL = ".partial"  # the end of the names of temporary files
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what writing raises
ON_WINDOWS = os.name == "nt"


@contextmanager
def open_atomically(path: Path, *, durable: bool = False, previous: Path | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file next to the target, renamed when the block ends: no reader ever sees half a file.

    With `durable`, it is synced to disk when the block ends, so that it survives a power failure. Where `previous` is
    given, the old file is renamed to it: at every moment at least one of the two is complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # an unpredictable name, opened with "x": a link planted there cannot redirect the write to another file
    partial = path.with_name(f".{path.name[:48]}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        with partial.open("xb") as file:  # with the permissions of the umask
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        partial.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # that of a failed write names no file
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file next to the target, then rename it."""
    with open_atomically(path) as file:
        file.write(content)


def write_durably(path: Path, content: bytes | memoryview, *, previous: Path | None = None) -> None:
    """As `write_atomically`, and synced to disk; `previous` as in `open_atomically`."""
    with open_atomically(path, durable=True, previous=previous) as file:
        file.write(content)


def remove_partial_files(folder: Path, *patterns: str) -> None:
    """Remove the temporary files that a killed process left of files like `*.ckpt`; no other process may write them."""
    for pattern in map(Path, patterns):
        for partial in folder.glob(str(pattern.with_name(f".{pattern.name}.*{PARTIAL}"))):
            partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk; not the content of its files."""
    if ON_WINDOWS:  # it opens no folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def one_at_a_time(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Let one process at a time into the block, of all that use this file; call `waiting` before having to wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_own(path, "ab") as file:
        if not lock(file, wait=False):
            waiting()
            lock(file)
        yield


def lock(file: IO[bytes], *, wait: bool = True) -> bool:
    """Lock the file until it is closed or this process ends; False where another process holds the lock.

    Where the system or file system has no locks, nothing is excluded.
    """
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # systems raise one or the other
        return False
    except (ImportError, OSError):
        pass
    return True


# -- JSON --------------------------------------------------------------------------------------------------------------


def encode_json(value: Any, **options: Any) -> str:
    """Return the value as JSON; raise NotFiniteError on NaN and infinity, which JSON does not have."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        place = _find_not_finite(value)
        if place is None:
            raise
        raise NotFiniteError(f"write JSON: {place} is NaN or infinite, which JSON cannot hold") from None


def _find_not_finite(value: Any, name: str = "the value") -> str | None:
    """Return the place of the first number that is NaN or infinite, such as `row.scores[2]`."""
    if isinstance(value, float):
        return None if math.isfinite(value) else name
    places = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    prefix = "" if name == "the value" else name
    candidates = (_find_not_finite(item, f"{prefix}[{key!r}]") for key, item in places)
    return next((place for place in candidates if place), None)


def nullify_not_finite(value: Any) -> Any:
    """Return the value with None for every NaN and infinity: a measurement that does not exist."""
    if isinstance(value, Mapping):
        return {key: nullify_not_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [nullify_not_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_json(text: str) -> Any:
    """The value of a JSON text. ValueError on anything that is not JSON, duplicate keys, NaN and huge numbers."""
    try:
        hooks: dict[str, Any] = {
            "parse_int": _parse_int,
            "parse_float": _parse_float,
            "parse_constant": _refuse_constant,
        }
        value = json.loads(text, object_pairs_hook=_to_dict, **hooks)
        if "\\ud" in text or "\\uD" in text:  # half of a surrogate pair cannot be written again
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("too many brackets inside each other") from None
    return value


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {shorten(name)}")
    return values


def _parse_int(digits: str) -> int:
    if len(digits) > 20:  # the digits of 64 bits; Python itself raises above 4300
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _parse_float(digits: str) -> float:
    if abs(value := float(digits)) > MAX_FLOAT:
        raise ValueError(f"the number {shorten(digits)} is too large")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def open_regular(path: Path, call: str = "") -> BinaryIO:
    """Open a file to read; DataError unless it is a regular one: reading a pipe or a device might never end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    what = "is a folder" if stat.S_ISDIR(mode) else "is not a regular file"
    raise DataError(f"{call}{path}: {what}; expected a file")


def open_own(path: Path, mode: str) -> IO[Any]:
    """Open a file that only this library writes; DataError unless it is a regular one, or there is none.

    Writing to a link would change a file elsewhere, and a pipe may wait for ever.
    """
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise DataError(f"{path}: is a link or not a regular file; remove it, or name another folder")
    return path.open(mode)


def read_bytes(path: Path, most: int, call: str = "") -> bytes:
    """The content of a file of at most `most` bytes; DataError where it is longer or not a regular file."""
    call = call and f"{call}: "
    try:
        with open_regular(path, call) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise DataError(f"{call}{path}: has {size:,} bytes; at most {most:,} are read")
            return file.read(size)
    except FileNotFoundError:
        raise DataError(f"{call}{path}: missing") from None
    except OSError as closed:
        raise DataError(f"{call}{path}: cannot be read ({closed.strerror or closed})") from None


def read_text(path: Path, call: str, *, most: int = 2**20) -> str:
    """The text of a small file; DataError where it is not a regular file, longer than `most` bytes or not UTF-8."""
    try:
        return read_bytes(path, most, call).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{call}: {path} is not UTF-8 text ({error.reason} at byte {error.start})") from None


def read_json_object(path: Path, call: str, *, most: int = 2**24) -> dict[str, Any]:
    """The object in a JSON file; DataError where it holds something else."""
    text = read_text(path, call, most=most)
    try:
        value = parse_json(text)
    except ValueError as broken:
        raise DataError(f"{call}: {path} is not valid JSON ({broken}); its run did not finish writing it") from None
    if not isinstance(value, dict):
        raise DataError(f"{call}: {path} must contain a JSON object (got {type(value).__name__})")
    return value


def is_number(value: object) -> bool:
    """Whether a value of a JSON file is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_FLOAT


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one object per line; a measurement that is NaN or infinite becomes null."""
    write_atomically(path, "".join(encode_json(nullify_not_finite(row)) + "\n" for row in rows).encode())


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
