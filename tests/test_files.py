"""Atomic writes: what a reader, a crash or another user of the folder can see; JSON that every reader accepts."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import sys
from pathlib import Path

import pytest

from hamburger import files
from hamburger.errors import NotFiniteError
from hamburger.files import (
    encode_json,
    open_atomically,
    remove_partial_files,
    write_atomically,
    write_durably,
    write_json_lines,
)


@pytest.mark.skipif(sys.platform == "win32", reason="no umask")
@pytest.mark.parametrize("write", [write_atomically, write_durably])
@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
def test_files_have_the_mode_of_the_umask(write, umask, tmp_path):
    before = os.umask(umask)
    try:
        write(tmp_path / "file", b"content")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("durable", [False, True])
def test_names_of_temporary_files_are_unpredictable_and_exclusive(durable, tmp_path, monkeypatch):
    """A link at the name of a temporary file would have the file it points to overwritten."""
    names = set()
    for _ in range(3):
        with open_atomically(tmp_path / "file", durable=durable) as file:
            file.write(b"new")
            names |= {path.name for path in tmp_path.iterdir() if path.name != "file"}
    assert len(names) == 3
    monkeypatch.setattr(files.secrets, "token_hex", lambda length: "guessed")
    (tmp_path / "other").write_bytes(b"of another user")
    (tmp_path / ".file.guessed.partial").symlink_to(tmp_path / "other")
    with pytest.raises(FileExistsError), open_atomically(tmp_path / "file", durable=durable):
        pass
    assert (tmp_path / "other").read_bytes() == b"of another user"


def test_a_failed_write_leaves_the_old_file_alone(tmp_path):
    path, previous = tmp_path / "file", tmp_path / "previous"
    write_durably(path, b"old", previous=previous)
    with pytest.raises(ZeroDivisionError), open_atomically(path, durable=True, previous=previous) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    write_durably(path, b"new", previous=previous)
    assert (path.read_bytes(), previous.read_bytes()) == (b"new", b"old")


def test_a_full_disk_is_named_by_the_file(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device: '.*file'"), open_atomically(tmp_path / "file"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_stale_temporary_files_are_removed(tmp_path):
    write_atomically(tmp_path / "samples" / "step-1.png", b"complete")
    for name in (".last.ckpt.0123456789abcdef.partial", "samples/.step-2.png.0123456789abcdef.partial"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / ".report.html.0123456789abcdef.partial").write_bytes(b"being written by another process")
    remove_partial_files(tmp_path, "*.ckpt", "samples/*")
    assert sorted(path.name[:7] for path in tmp_path.rglob("*") if path.is_file()) == [".report", "step-1."]


def test_long_names_can_be_written(tmp_path):
    name = 50 * "\N{HAMBURGER}" + 51 * "a" + ".png"  # 255 bytes, as many as a name can have
    write_atomically(tmp_path / name, b"content")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_without_nan(value, tmp_path):
    with pytest.raises(NotFiniteError, match=r"\['scores'\]\[1\] is NaN or infinite"):
        encode_json({"name": "x", "scores": [1.0, value]})
    write_json_lines(tmp_path / "rows.jsonl", [{"miou": value, "each": (1.5, value)}, {"per_class": {"sky": value}}])
    assert (tmp_path / "rows.jsonl").read_text() == (
        '{"miou": null, "each": [1.5, null]}\n{"per_class": {"sky": null}}\n'
    )


def test_one_function_writes_all_json():
    """Hashes and labels may use json.dumps: they are not files."""
    source = Path(files.__file__).parent
    allowed = {"files.py", "training/recipe.py", "training/supervised.py"}
    allowed |= {"report/study.py", "classification/data/base.py"}
    users = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"json\.dumps?\(", path.read_text())
    }
    assert users <= allowed
    assert all("json.dump(" not in (source / name).read_text() for name in users)
