"""Training processes that tests stop: at a phase, at a file operation or at any time; resumed, they end the same."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time

import forkserver
import small_tasks
from file_events import FileEvents, kill_at

from hamburger.errors import HamburgerError, Interrupted
from hamburger.generation import train as gan_train
from hamburger.generation import trainer as gan_trainer
from hamburger.tasks import tasks
from hamburger.training import checkpoint
from hamburger.training.accelerator import Accelerator
from hamburger.training.run_folder import RunFolder
from hamburger.training.trainer import Trainer

REFUSED, INTERRUPTED = 4, 130  # exit statuses of `work`
PHASES = ("start", "claim", "data", "launch", "step", "evaluation", "checkpoint", "finish")


def find_function(phase, task):
    """The owner and the name of a function that runs in this phase."""
    gan = task == "generation"
    return {
        "start": (Accelerator, "__init__"),
        "claim": (RunFolder, "claim"),
        "data": (gan_train, "load_images") if gan else (type(tasks[task]), "open"),
        "launch": (Accelerator, "launch"),
        "step": (gan_trainer.GanTrainer if gan else Trainer, "train_step"),
        "evaluation": (gan_trainer, "draw_class_rows") if gan else (Trainer, "_between_images"),
        "checkpoint": (checkpoint, "write_durably"),
        "finish": (RunFolder, "write_result"),
    }[phase]


def work(task, run, *settings, phase=None, number=None, at_operation=None):
    """Train in this process, which sends itself signal `number` in a phase or at a file operation."""
    stop = lambda: os.kill(os.getpid(), number)  # noqa: E731
    if phase is not None:
        interrupt_in(*find_function(phase, task), stop)
    with contextlib.ExitStack() as stack:
        if at_operation is not None:
            stack.enter_context(FileEvents(run, kill_at(at_operation, stop)))
        try:
            small_tasks.train(task, run, *settings)
        except (Interrupted, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except HamburgerError as error:
            if "another process is training" in str(error) or "already holds a run" in str(error):
                sys.exit(REFUSED)
            raise


def interrupt_in(owner, name, stop):
    original = getattr(owner, name)

    def interrupted(*args, **options):
        setattr(owner, name, original)
        stop()
        return original(*args, **options)

    setattr(owner, name, interrupted)


def start(*args, **options):
    process = forkserver.context("timm", "torchvision", "pycocotools").Process(target=work, args=args, kwargs=options)
    process.start()
    return process


def kill_repeatedly(task, folder, kills, *, seed=0, report=lambda done: None):
    """Kill runs of a task `kills` times and resume them; return how many finished, all like an undisturbed one.

    Half of the kills come at any time, half at a file operation, when a file may be half written.
    """
    draw = random.Random(seed)
    calm = start(task, folder / "calm")
    calm.join()
    assert calm.exitcode == 0
    begun, ended = ((folder / "calm" / name).stat().st_mtime for name in (".lock", "result.json"))
    expected = small_tasks.reproducible_outputs(folder / "calm")
    done = finished = 0
    complete = False
    while done < kills or not complete:  # at last let the run that was killed last finish
        run = folder / f"run-{finished}"
        if done == kills:
            process = start(task, run)
        elif draw.random() < 0.5:
            process = start(task, run)
            time.sleep(draw.uniform(0, 1.2 * (ended - begun)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        else:
            process = start(task, run, number=signal.SIGKILL, at_operation=draw.randrange(1, 30))
        process.join()
        complete = process.exitcode == 0
        if complete:
            assert small_tasks.reproducible_outputs(run) == expected, run
            finished += 1
        else:
            assert process.exitcode == -signal.SIGKILL, (task, run, process.exitcode)
            done += 1
            report(done)
    return finished
