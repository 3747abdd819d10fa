"""Two gloo processes match a single process on the global batch; one process can resume a run of two."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from small_run import SETTINGS, rows, small

from hamburger.tasks import train

# batch norm, a random dictionary and dropout: all that must join over the processes
MORE = ("log_every=1", "steps=30", "eval_every=30", "checkpoint_every=1000", "model.head_options.dropout=0.3")


def command(run, *more):
    settings = [word for setting in (*SETTINGS, *MORE) for word in ("--set", setting)]
    words = [sys.executable, "-m", "hamburger", "train", "patchwork", "--run", str(run), "--accelerator", "cpu"]
    return [*words, *settings, *more]


def losses(run):
    return [row["loss"] for row in rows(run) if "loss" in row]


def test_two_ranks_match_one_and_resume_across_counts(tmp_path):
    alone = train(small(*MORE), tmp_path / "one", accelerator="cpu")
    two = tmp_path / "two"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command(two, "--devices", "2"), env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while process.poll() is None and not (two / "metrics.jsonl").exists():
            time.sleep(0.01)
        time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C reaches every process of the terminal
        message = process.communicate(timeout=60)[1]
    if process.returncode:  # else it was faster than the finger
        assert process.returncode == 130, message
        assert "continue with --resume" in message
        assert "Traceback" not in message
        assert losses(two)
        train(small(*MORE), two, accelerator="cpu", resume=True)
    torch.testing.assert_close(losses(two), losses(tmp_path / "one"), rtol=1e-4, atol=1e-5)
    assert len(losses(two)) == 30
    assert rows(two)[-1]["miou"] == pytest.approx(alone.values["miou"], abs=2e-3)
