"""Warm processes: one interpreter for several commands, the same output as new ones, and none that has failed again."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest
from small_run import SETTINGS, found

from hamburger.tasks import train
from hamburger.tasks.sweep import HAM, Cell, Fresh, Warm, run_grid

pytestmark = pytest.mark.full  # each starts processes that import torch


def finish(running):
    while (status := running.poll()) is None:
        time.sleep(0.02)
    return status


@pytest.fixture
def warm():
    made = Warm(1)
    yield made
    made.close()


def test_commands_share_an_interpreter_and_say_what_they_say_alone(warm, tmp_path):
    first, second = tmp_path / "logs" / "first.txt", tmp_path / "logs" / "second.txt"
    job = warm.start([*HAM, "list", "hams"], first)
    worker = job.worker
    assert finish(job) == 0
    job = warm.start([*HAM, "list", "ablations"], second)
    assert job.worker is worker and finish(job) == 0
    alone = Fresh(1).start([*HAM, "list", "hams"], tmp_path / "alone.txt")
    assert finish(alone) == 0
    assert first.read_text() == (tmp_path / "alone.txt").read_text() and "nmf" in first.read_text()
    assert "latent" in second.read_text() and "latent" not in first.read_text()
    warm.close()
    assert worker.process.returncode == 0


def test_a_mistake_ends_its_worker_and_the_next_command_gets_another(warm, tmp_path):
    job = warm.start([*HAM, "list", "hamz"], tmp_path / "log.txt")
    assert finish(job) == 2 and not warm.idle
    assert (tmp_path / "log.txt").read_text().startswith("ham: ")
    again = warm.start([*HAM, "list", "hams"], tmp_path / "log.txt")
    assert again.worker is not job.worker
    os.kill(again.worker.process.pid, signal.SIGKILL)
    assert finish(again) == -signal.SIGKILL and not warm.idle


def test_side_by_side_no_kernel_waits_for_room_that_another_process_holds(monkeypatch):
    monkeypatch.delenv("HAM_BACKEND", raising=False)
    assert Fresh(2).environment["HAM_BACKEND"] == "plain" and "HAM_BACKEND" not in Fresh(1).environment
    monkeypatch.setenv("HAM_BACKEND", "auto")
    assert Fresh(8).environment["HAM_BACKEND"] == "auto"


def test_other_commands_have_processes_of_their_own(warm, tmp_path):
    assert finish(warm.start([sys.executable, "-c", "print(3)"], tmp_path / "log.txt")) == 0
    assert (tmp_path / "log.txt").read_text() == "3\n" and not warm.idle


def test_trainings_in_one_interpreter_are_those_of_new_ones(tmp_path):
    """To the last bit, also one that follows another."""
    grid = [Cell(name, "patchwork", 0, (*SETTINGS, f"model.context={name}")) for name in ("nmf", "vq")]
    run_grid(grid, tmp_path / "warm", warm=True)
    train(grid[1].resolved(), tmp_path / "here", accelerator="cpu")
    assert found(tmp_path / "warm" / "vq-seed0") == found(tmp_path / "here")
    assert json.loads((tmp_path / "warm" / "nmf-seed0" / "result.json").read_text())["steps"] == 12
