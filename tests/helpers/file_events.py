"""Acts at every file operation of a run: copies its folder as a crash would leave it, fails, or kills the process."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from pathlib import Path

import pytest


class FileEvents:
    """`with FileEvents(folder, act):` calls `act(number, kind, path)` before each operation on a file in the folder.

    Kinds: mkdir, open (for writing), write (half of it is in the file by then), truncate, fsync, rename, unlink.
    """

    def __init__(self, folder, act):
        self.folder, self.act, self.count = Path(folder), act, 0

    def happen(self, kind, path):
        if self.folder in (Path(path), *Path(path).parents):
            self.count += 1
            self.act(self.count, kind, Path(path))

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        for kind, name in (("rename", "replace"), ("unlink", "unlink"), ("mkdir", "mkdir")):
            self._watch(kind, name, lambda path: path)
        self._watch("fsync", "fsync", lambda handle: Path(f"/proc/self/fd/{handle}").readlink())
        original = io.open

        def opened(file, mode="r", *args, **options):
            if "b" not in mode or not set(mode) & set("wax"):
                return original(file, mode, *args, **options)
            self.happen("open", file)
            return Writer(io.FileIO(file, mode.replace("b", "")), self.happen)

        self.patch.setattr(io, "open", opened)
        return self

    def _watch(self, kind, name, path_of):
        original = getattr(os, name)

        def watched(target, *args, **options):
            self.happen(kind, path_of(target))
            return original(target, *args, **options)

        self.patch.setattr(os, name, watched)

    def __exit__(self, *_):
        self.patch.undo()


class Writer(io.BufferedWriter):
    def __init__(self, raw, happen):
        super().__init__(raw)
        self.happen = happen

    def write(self, data):
        data = bytes(data)
        half = super().write(data[: len(data) // 2])
        self.flush()
        self.happen("write", self.raw.name)
        return half + super().write(data[half:])

    def truncate(self, size=None):
        self.happen("truncate", self.raw.name)
        return super().truncate(size)


class Snapshots:
    """An `act` that copies the run folder to `copies`, as a process killed at this operation would leave it."""

    def __init__(self, run, copies):
        self.run, self.copies, self.seen = run, copies, set()

    def __call__(self, number, kind, path):
        if self.run.exists() and (state := self._state()) not in self.seen:
            self.seen.add(state)
            shutil.copytree(self.run, self.copies / f"{number:03d}-{kind}-{path.name}")

    def _state(self):
        digest = hashlib.sha256()
        for path in sorted(path for path in self.run.rglob("*") if path.is_file()):
            # random numbers in the names of temporary files do not make another state
            digest.update(f"{path.name.split('.')[:3]} {path.stat().st_size} ".encode() + path.read_bytes())
        return digest.digest()


def kill_at(number, action):
    """An `act` that calls `action` at one operation."""
    return lambda count, kind, path: action() if count == number else None


def fail_from(number, error):
    """An `act` that raises OSError from one operation on, as a full disk does; removing files still works."""

    def act(count, kind, path):
        if count >= number and kind not in ("unlink", "truncate"):
            raise OSError(error, os.strerror(error), str(path) if kind == "open" else None)

    return act
