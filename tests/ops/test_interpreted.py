"""Runs files of cases in processes of their own, where Triton interprets its kernels on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    ["ops/fused_cases.py", "ops/block_cases.py", "layers/fused_block_cases.py", "layers/kept_block_cases.py"],
)
def test_kernels_in_the_interpreter(cases):
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", str(ROOT / "tests" / cases)],
        env={k: v for k, v in os.environ.items() if k != "HAM_BACKEND" and not k.startswith("PYTEST_")}
        | {"TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
