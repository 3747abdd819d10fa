"""Share an expensive text between the processes of pytest-xdist."""

import os
from collections.abc import Callable

import pytest
from filelock import FileLock


def make_once(folders: pytest.TempPathFactory, name: str, make: Callable[[], str]) -> str:
    """`make()`, called by the first test process that needs it; the others read its file."""
    own_folder = folders.getbasetemp()
    file = (own_folder.parent if "PYTEST_XDIST_WORKER" in os.environ else own_folder) / name
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_text(make())
        return file.read_text()
