"""What takes long to make, made by the first of the test processes that needs it and read by the others."""

import os
from collections.abc import Callable

import pytest
from filelock import FileLock


def made_once(folders: pytest.TempPathFactory, name: str, make: Callable[[], str]) -> str:
    own = folders.getbasetemp()
    file = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_text(make())
        return file.read_text()
