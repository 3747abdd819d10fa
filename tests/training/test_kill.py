"""Training processes of every task that are killed or stopped end like undisturbed ones."""

from __future__ import annotations

import signal
import sys

import pytest
import small_tasks
from killed_run import INTERRUPTED, PHASES, REFUSED, kill_repeatedly, start
from small_tasks import reproducible_outputs, train

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="kills by signal, and looks into /proc"),
    pytest.mark.parametrize("task", small_tasks.SMALL),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def test_kills_and_resumes_change_nothing(task, tmp_path):
    assert kill_repeatedly(task, tmp_path, kills=12) >= 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signals_in_every_phase_change_nothing(task, number, tmp_path):
    train(task, tmp_path / "calm")
    expected = reproducible_outputs(tmp_path / "calm")
    for phase in PHASES:
        run = tmp_path / phase
        process = start(task, run, phase=phase, number=number)
        process.join()
        in_steps = phase in ("step", "evaluation", "checkpoint")
        if number == signal.SIGKILL or (number == signal.SIGTERM and not in_steps):
            assert process.exitcode == -number, phase
        else:
            assert process.exitcode == INTERRUPTED, phase
        if in_steps and number != signal.SIGKILL:
            assert (run / "last.ckpt").exists(), phase
        train(task, run)
        assert reproducible_outputs(run) == expected, phase


def test_of_several_writers_one_trains(task, tmp_path):
    train(task, tmp_path / "calm")
    run = tmp_path / "run"
    processes = [start(task, run) for _ in range(3)]
    for process in processes:
        process.join()
    statuses = sorted(process.exitcode for process in processes)
    assert statuses[0] == 0 and set(statuses) <= {0, REFUSED}
    assert reproducible_outputs(run) == reproducible_outputs(tmp_path / "calm")
