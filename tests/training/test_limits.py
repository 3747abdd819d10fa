"""Real limits of the system: the size of files, a full file system, a killed rank."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import forkserver
import pytest
import small_tasks
from small_tasks import reproducible_outputs, small, train

from hamburger.errors import Interrupted, TrainingError
from hamburger.training.metrics_log import RunStarted, StepLogged
from hamburger.training.recipe import to_json

pytestmark = [pytest.mark.full, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, mounts")]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def command(task, recipe, run, *words):
    verb = ("gan", "train") if task == "generation" else ("train",)
    return [sys.executable, "-m", "hamburger", *verb, str(recipe), "--run", str(run), "--accelerator", "cpu", *words]


def train_limited(task, run, size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        train(task, run)
    except TrainingError as error:
        Path(f"{run}.txt").symlink_to(str(error))  # a link has no size that is limited


@pytest.mark.parametrize("task", small_tasks.SMALL)
def test_a_limit_on_file_sizes_stops_with_an_error_and_the_run_resumes(task, tmp_path):
    calm = tmp_path / "calm"
    train(task, calm)
    sizes = {path.stat().st_size for path in calm.iterdir() if path.is_file() and path.name not in ("timings.jsonl",)}
    for size in sorted(sizes - {0}):
        run = tmp_path / str(size)
        process = forkserver.context().Process(target=train_limited, args=(task, run, size - 1))
        process.start()
        process.join()
        message = str(Path(f"{run}.txt").readlink())
        assert process.exitcode == 0 and "exceeds the size limit" in message and str(run) in message
        train(task, run)
        assert reproducible_outputs(run) == reproducible_outputs(calm), size


FULL = """
mount -t tmpfs -o size={small}k none "$0" || exit 77
"$@"
echo "status $?" >&2
mount -o remount,size=100m "$0" && test -e "$0/run/recipe.json" && set -- "$@" --resume
"$@" && cp -r "$0/run" "$0.copy"
"""


@pytest.mark.parametrize("kilobytes", [0, 4, 80, 120])
def test_a_full_file_system_stops_with_an_error_and_the_run_resumes(kilobytes, tmp_path):
    disk, recipe = tmp_path / "disk", tmp_path / "recipe.json"
    disk.mkdir()
    recipe.write_text(to_json(small("segmentation")))
    train("segmentation", tmp_path / "calm")
    script = FULL.format(small=kilobytes or 1)  # the smallest file system is one page
    unshare = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--mount"]
    words = [*unshare, "sh", "-c", script, str(disk), *command("segmentation", recipe, disk / "run")]
    ended = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    if "unshare" in ended.stderr or ended.returncode == 77:
        pytest.skip("may not mount a file system here")
    assert "is full (No space left on device); free some space" in ended.stderr
    assert "status 2" in ended.stderr and "Traceback" not in ended.stderr
    assert ended.returncode == 0, ended.stderr
    assert reproducible_outputs(tmp_path / "disk.copy") == reproducible_outputs(tmp_path / "calm")


def children(pid):
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("task", small_tasks.SMALL)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_stops_the_other_and_the_run_resumes(task, rank, tmp_path):
    run, recipe = tmp_path / "run", tmp_path / "recipe.json"
    settings = ("steps=100000", "checkpoint_every=5", *(() if task == "generation" else ("eval_every=100000",)))
    settings += ("batch=4", "log_every=5")
    recipe.write_text(to_json(small(task, *settings)))
    words = command(task, recipe, run, "--devices", "2")
    with subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while process.poll() is None and not (run / "last.ckpt").exists():
            time.sleep(0.05)
        (other,) = children(process.pid)
        os.kill(process.pid if rank == 0 else other, signal.SIGKILL)
        message = process.communicate(timeout=120)[1]  # ends when both have closed it
    assert process.returncode == (-signal.SIGKILL if rank == 0 else 2), message
    assert "another process ended at step" in message and "continue with --resume" in message
    assert "Traceback" not in message
    started = []

    def stop(event):
        if isinstance(event, RunStarted):
            started.append(event.step)
        if isinstance(event, StepLogged):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(task, run, *settings, on_event=stop)
    assert started[0] >= 5
