from __future__ import annotations

import sys

import pytest

from hamburger.cli import main


@pytest.fixture
def ham(monkeypatch, capfd):
    """`ham("train", ...)` runs the command in this process and returns its exit status, stdout and stderr."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["ham", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capfd.readouterr()
        return end.value.code, captured.out, captured.err

    return call
