"""Maps in files, of which rectangles are read and written; passes that continue after a kill; label PNGs in bands."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import HamburgerError
from hamburger.files import encode_json, open_own, read_json_object, write_atomically
from hamburger.training.image_files import Colour

Progress = Callable[[int, int], object]  # work done so far, and in total
Pass = tuple[int, Callable[[int], None]]  # the number of items, and what to do with an item's number


class DiskMap:
    """A map h w c in a file, of which rectangles are read and written. What is not in the file is zero."""

    def __init__(
        self, path: Path, height: int, width: int, channels: int, dtype: type[np.generic] = np.float32
    ) -> None:
        self.path, self.height, self.width, self.channels, self.dtype = path, height, width, channels, dtype
        self._bytes = channels * np.dtype(dtype).itemsize  # of a position

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor:
        """->   h w c"""
        values = np.zeros((bottom - top, right - left, self.channels), self.dtype)
        with self.path.open("rb", buffering=0) as file:
            for begin, end in self._runs(bottom - top, right - left):
                file.seek(((top + begin) * self.width + left) * self._bytes)
                file.readinto(values[begin:end].reshape(-1).view(np.uint8).data)
        return torch.from_numpy(values)

    def write(self, top: int, left: int, values: Tensor) -> None:
        """values: h w c"""
        numbers = np.ascontiguousarray(values.cpu().numpy(), self.dtype)
        open_own(self.path, "ab").close()  # creates it
        try:
            with self.path.open("r+b") as file:  # buffered: a raw write may write a part and raise nothing
                for begin, end in self._runs(*numbers.shape[:2]):
                    file.seek(((top + begin) * self.width + left) * self._bytes)
                    file.write(numbers[begin:end].reshape(-1).view(np.uint8).data)
        except OSError as full:
            full.filename = str(self.path)  # that of a failed write names no file
            raise

    def sync(self) -> None:
        """Sync what was written to disk, before the journal says so."""
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())

    def _runs(self, height: int, width: int) -> Iterator[tuple[int, int]]:
        """Rows of a rectangle that are next to each other in the file."""
        step = height if width == self.width else 1
        return ((i, i + step) for i in range(0, height, step))


def run_with_journal(path: Path, plan: dict[str, Any], passes: Sequence[Pass], progress: Progress) -> None:
    """Do passes of (number of items, function of an item's number), except what a killed call with this plan has done.

    An item counts as done when its function has returned, so it may be repeated after a kill.
    """
    items = [partial(work, index) for count, work in passes for index in range(count)]
    done = 0
    if path.exists():
        with suppress(HamburgerError):  # a damaged journal is none
            content = read_json_object(path, "stream")
            if content.get("plan") == plan and type(content.get("done")) is int:
                done = content["done"] if 0 < content["done"] <= len(items) else 0
    progress(done, len(items))
    for number in range(done, len(items)):
        items[number]()
        write_atomically(path, encode_json({"plan": plan, "done": number + 1}).encode())
        progress(number + 1, len(items))


def write_label_png(file: BinaryIO, width: int, height: int, bands: Iterator[Tensor], palette: list[Colour]) -> None:
    """Write a palette PNG from bands of rows; Pillow would need all of them at once.   bands: h w uint8"""

    def write(kind: bytes, data: bytes) -> None:
        file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))

    file.write(b"\x89PNG\r\n\x1a\n")
    write(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))  # 8 bits, a palette
    write(b"PLTE", bytes(value for colour in palette for value in colour))
    compressor = zlib.compressobj()
    for band in bands:
        rows = F.pad(band, (1, 0))  # the filter of each row: none
        if data := compressor.compress(rows.numpy().tobytes()):
            write(b"IDAT", data)
    write(b"IDAT", compressor.flush())
    write(b"IEND", b"")
