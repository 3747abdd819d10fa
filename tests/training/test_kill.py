"""A training process that is killed at random moments twenty times ends like an undisturbed one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time

import forkserver
import killed_run
import pytest
from small_run import reproducible_outputs

KILLS = 20
STEPS = ("steps=40", "checkpoint_every=3", "eval_every=10")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills by signal, and looks into /proc")


def start(run, *, slow):
    process = forkserver.context().Process(target=killed_run.work, args=(run, STEPS, slow))
    process.start()
    return process


def kill(process):
    """Whether it was still there to be killed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


def half_written(run):
    return list(run.glob(".last.ckpt.*.partial"))


def wait(process, ready, seconds=60.0):
    """Until `ready()` or the end of the process; whether it is still there."""
    ends = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < ends:
        if ready():
            return True
        time.sleep(0.002)
    return False


@pytest.mark.full
def test_twenty_kills_and_resumes_change_nothing(tmp_path):
    undisturbed = tmp_path / "undisturbed"
    calm = start(undisturbed, slow=False)
    calm.join()
    assert calm.exitcode == 0
    draw = random.Random(0)
    kills, moments = 0, set()
    run, again = tmp_path / "run-0", 0
    while kills < KILLS:
        # every third time while a checkpoint is being written, which is made to last
        writing = kills % 3 == 2
        log = run / "metrics.jsonl"
        for partial in half_written(run):
            partial.unlink()  # left over from the kill before, it tells nothing
        size = log.stat().st_size if log.exists() else 0
        process = start(run, slow=writing)
        if writing:
            alive = wait(process, lambda run=run: half_written(run))
            time.sleep(draw.uniform(0, 0.12))
        else:
            early = draw.random() < 0.2  # before it has even read its checkpoint
            alive = early or wait(process, lambda log=log, size=size: log.exists() and log.stat().st_size != size)
            time.sleep(draw.uniform(0, 0.1))
        if alive and kill(process):
            kills += 1
            moments.add((writing, bool(half_written(run)), (run / "last.ckpt").exists()))
            continue
        process.join()  # it was faster: this run is finished, so its end counts, and the kills go on in another
        assert process.exitcode == 0
        assert reproducible_outputs(run) == reproducible_outputs(undisturbed)
        again += 1
        run = tmp_path / f"run-{again}"
    last = start(run, slow=False)
    last.join()
    assert last.exitcode == 0
    assert reproducible_outputs(run) == reproducible_outputs(undisturbed)
    assert any(writing and partial for writing, partial, _ in moments), "no kill met a half-written checkpoint"
    assert not list(run.glob(".*.partial"))
