"""Runs block_cases.py in a process of its own, where Triton interprets its kernels on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.slow
def test_the_blocks_kernels_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", str(Path(__file__).with_name("block_cases.py"))]
    environment = {k: v for k, v in os.environ.items() if k != "HAM_BACKEND" and not k.startswith("PYTEST_")}
    run = subprocess.run(
        command,
        env=environment | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
