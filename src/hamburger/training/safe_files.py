"""Limits of files that others wrote, and readers that check them before they allocate: bytes, text, arrays, ids.

| what | at most |
| --- | --- |
| pixels of an image, a label or a disparity map | 2^26, as 8192 x 8192 |
| a list of images or classes, a CIFAR batch, an SBD label (also decompressed) | 64 MiB |
| lines of a list | 2^20, of 4096 characters |
| a JSON file of COCO instances | 2 GiB |
| masks of all objects of one image | 4 GiB |
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from hamburger.errors import DataError, shorten
from hamburger.files import read_bytes

MAX_PIXELS = 2**26
MAX_FILE_BYTES = 64 * 2**20
MAX_LINES = 2**20
MAX_LINE_LENGTH = 4096  # two paths with spaces between them
MAX_JSON_BYTES = 2 * 2**30
MAX_MASK_BYTES = 4 * 2**30
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 1024  # what Linux allows for a name, and enough for a path below the root


def describe(error: BaseException) -> str:
    """Return the beginning of a library's error about a damaged file; it may quote the file's bytes."""
    text = " ".join(str(error).split())[:120]
    return "".join(letter if letter.isprintable() else "?" for letter in text) or type(error).__name__


def check_pixels(path: Path, width: int, height: int) -> None:
    """Raise unless an image of this size may be decoded."""
    if width * height > MAX_PIXELS:
        raise DataError(
            f"{path}: {width} x {height} pixels are more than the {MAX_PIXELS:,} that are read; resize it, or cut it "
            f"into tiles"
        )


def read_lines(path: Path, content: str) -> list[str]:
    """Return the lines of a UTF-8 text file; `content` says in an error what it must list."""
    if not path.exists():
        raise DataError(f"{path}: missing; it must list {content}")
    try:
        text = read_bytes(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as broken:
        raise DataError(f"{path}: not readable as text in UTF-8 ({broken}); it must list {content}") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(f"{path}, line {line}: has a NUL character; it must list {content}")
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise DataError(f"{path}: has {len(lines):,} lines; at most {MAX_LINES:,} are read")
    if (length := max(map(len, lines), default=0)) > MAX_LINE_LENGTH:
        line = next(number for number, text in enumerate(lines, start=1) if len(text) == length)
        raise DataError(f"{path}, line {line}: has {length:,} characters; at most {MAX_LINE_LENGTH:,} are read")
    return lines


def check_relative(where: str, name: str) -> str:
    """Return a file name or id from a data set's file; raise unless it stays inside the folder it is relative to.

    `where` begins the error. Symbolic links in the folder are followed, since they are the user's own.
    """
    path = PurePosixPath(name)
    try:
        length, longest = len(name.encode()), max((len(part.encode()) for part in path.parts), default=0)
    except UnicodeEncodeError:
        raise DataError(f"{where}: {ascii(name)[:80]} is not a file name (it is not valid Unicode)") from None
    if not path.parts or "\0" in name or length > MAX_PATH_BYTES or longest > MAX_NAME_BYTES:
        raise DataError(f"{where}: {shorten(name)} is not a file name")
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{where}: {shorten(name)} leaves the data folder; name files relative to it, without '..'")
    return name


def read_npy(file: IO[bytes], *, most: int) -> npt.NDArray[Any]:
    """Return the numbers of a .npy stream, at most `most`; raise an exception of any type if it is damaged."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):  # later ones are for headers above 64 KiB, up to 4 GiB
        raise ValueError(f"version {version[0]}.{version[1]} of the format, which plain numbers do not need")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "fiu":
        raise ValueError(f"it holds {dtype}, not numbers")
    if min(shape, default=0) < 0 or math.prod(shape) > most:
        raise ValueError(f"its header promises more than {most:,} numbers")
    length = math.prod(shape) * dtype.itemsize
    content = file.read(length)
    if len(content) != length:
        raise ValueError(f"it ends after {len(content):,} of {length:,} bytes")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
