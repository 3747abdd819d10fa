"""A crash or a failing disk at any file operation of a run leaves a folder that resumes to the same bits."""

from __future__ import annotations

import errno
import sys

import pytest
import small_tasks
from file_events import FileEvents, Snapshots, fail_from
from small_tasks import reproducible_outputs, train

from hamburger.errors import TrainingError

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.parametrize("task", small_tasks.SMALL),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_crash_at_any_file_operation_changes_nothing(task, tmp_path):
    run, copies = tmp_path / "run", tmp_path / "copies"
    with FileEvents(run, Snapshots(run, copies)) as events:
        train(task, run)
    expected = reproducible_outputs(run)
    states = sorted(copies.iterdir())
    assert events.count > 40 and len(states) > 20
    for state in states:
        train(task, state)
        assert reproducible_outputs(state) == expected, state.name
        assert not list(state.rglob(".*.partial")), state.name


@pytest.mark.parametrize(
    ("error", "kinds", "advice"),
    [
        (errno.ENOSPC, ("write", "fsync"), "free some space"),
        (errno.EFBIG, ("write",), "raise it"),
        (errno.EIO, ("fsync", "rename"), "Input/output error"),
    ],
    ids=["full", "limited", "defective"],
)
def test_a_failing_disk_stops_with_an_error_and_the_run_resumes(task, error, kinds, advice, tmp_path):
    events = []
    with FileEvents(tmp_path / "calm", lambda number, kind, path: events.append(kind)):
        train(task, tmp_path / "calm")
    expected = reproducible_outputs(tmp_path / "calm")
    for number in (number for number, kind in enumerate(events, start=1) if kind in kinds):
        run = tmp_path / str(number)
        with (
            FileEvents(run, fail_from(number, error)),
            pytest.raises((TrainingError, OSError), match=advice) as stopped,
        ):
            train(task, run)
        assert error == errno.EIO or isinstance(stopped.value, TrainingError)
        assert ("--resume" in str(stopped.value)) <= (run / "recipe.json").exists()
        assert not list(run.rglob(".*.partial"))
        train(task, run)
        assert reproducible_outputs(run) == expected, (number, events[number - 1])
