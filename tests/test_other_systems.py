"""Windows has no `fcntl` and no `resource`, and opens no folders: training must work there too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_run import small

from hamburger import files
from hamburger.tasks import train

UNIX_ONLY = ("fcntl", "resource", "termios", "pwd", "grp", "posix_ipc", "syslog")
MODULES = ("hamburger.cli.app", "hamburger.tasks", "hamburger.training.train", "hamburger.generation.train")


def test_no_module_of_unix_is_imported():
    script = "import importlib, sys\nsys.modules.update(dict.fromkeys({names}))\nfor module in {modules}:\n    "
    script = script.format(names=UNIX_ONLY, modules=MODULES) + "importlib.import_module(module)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def windows(monkeypatch):
    def open_file(path, flags, *args, **options):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, flags, *args, **options)

    original = os.open
    monkeypatch.setattr(files, "ON_WINDOWS", True)
    monkeypatch.setattr(os, "open", open_file)
    for name in UNIX_ONLY:
        monkeypatch.setitem(sys.modules, name, None)


def test_a_run_finishes_without_what_windows_lacks(windows, tmp_path):
    values = train(small("steps=2"), tmp_path / "run", accelerator="cpu").values
    assert values["steps"] == 2 and values["peak_mb"] == 0
