"""Train a recipe into a run folder: lock the folder, start or resume the run, write the result."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed

from hamburger import distributed
from hamburger.training.accelerator import Accelerator, is_rank_zero
from hamburger.training.builders import outfit
from hamburger.training.interrupt import StopRequest
from hamburger.training.metrics_log import Began, Listener, Note
from hamburger.training.recipe import SupervisedTraining, Training
from hamburger.training.run_folder import Result, RunFolder, measured
from hamburger.training.task import Task
from hamburger.training.trainer import Equipment, Run, Supervised

if TYPE_CHECKING:
    from lightning.fabric import Fabric


R = TypeVar("R", bound=SupervisedTraining)


def train(
    task: Task[R],
    recipe: R,
    run: Path | str,
    *,
    data: Path | str | None = None,
    devices: int = 1,
    nodes: int = 1,
    accelerator: str = "auto",
    resume: bool = False,
    light: bool = False,
    on_event: Listener = lambda event: None,
) -> Result:
    """Train `recipe` into the folder `run`, or go on with it; a finished run is only read.

    `data` is the data folder, where the recipe's set is not an embedded one. With several `devices` the calling script
    is started once more for each further process, as Fabric does it, unless `torchrun` has started them all. Ctrl-C and
    SIGTERM save a checkpoint and raise `Interrupted`. A `light` run leaves no checkpoint behind once it is finished,
    only its weights and its result.
    """
    machine = Accelerator.choose(accelerator=accelerator, devices=devices, nodes=nodes)
    task.kind.check(recipe, processes=machine.processes)

    def open_data(first: bool) -> Any:
        listen: Listener = on_event if first else lambda event: None
        root = None if data is None else Path(data)
        return task.open(recipe, root, first=first, note=lambda text: listen(Note(text)))

    def work(fabric: Fabric, folder: RunFolder, opened: Any, listen: Listener) -> Result:
        ready(machine, fabric, steady=task.steady)
        with fabric.rank_zero_first(local=True):  # whoever downloads weights does it once for all
            torch.manual_seed(recipe.seed)
            net = task.build(recipe, opened)
        assembly = outfit(recipe, recipe.optim, fabric, net)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        with StopRequest() as stop:
            loop = task.loop(task, recipe, opened, Equipment(fabric, folder, assembly, stop, listen))
            loop.light = light
            begin(loop, resume, parameters, len(opened.train), len(opened.val), task.notes(recipe, net))
            loop.run()
        return _finish(task, recipe, loop, parameters)

    return in_folder(recipe, run, machine, resume=resume, on_event=on_event, open_data=open_data, work=work)


def ready(machine: Accelerator, fabric: Fabric, *, steady: bool = True) -> None:
    """The device, before anything is on it."""
    if machine.accelerator == "cuda":
        torch.backends.cudnn.benchmark = steady  # trying out algorithms pays where every batch has the same size
        torch.cuda.reset_peak_memory_stats(fabric.device)


def begin(
    loop: Run[Any, Any],
    resume: bool,
    parameters: int,
    train_images: int,
    val_images: int | None,
    notes: Iterable[str] = (),
) -> None:
    """At the beginning, or where the last checkpoint left off; from here on the folder holds a run."""
    recipe, folder = loop.recipe, loop.folder
    torch.manual_seed(recipe.seed)  # whatever building the network drew, all processes begin with equal generators
    resumed = resume and loop.restore()
    if loop.first:
        folder.begin(recipe)
        if resume and not resumed:
            loop.listen(Note(f"{folder.path} has no checkpoint yet: beginning at the beginning"))
        for note in notes:
            loop.listen(Note(note))
    loop.listen(
        Began(
            run=folder.path,
            step=loop.progress.step,
            steps=recipe.steps,
            parameters=parameters,
            train_images=train_images,
            val_images=val_images,
            device=str(loop.device),
            processes=distributed.world(),
        )
    )


def _finish(task: Task[R], recipe: R, loop: Supervised[Any], parameters: int) -> Result:
    progress = loop.progress
    assert progress.scores is not None
    values = {
        "recipe": recipe.name,
        "task": task.kind.task,
        **task.about(recipe),
        "seed": recipe.seed,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "precision": recipe.precision,
        **progress.scores,
        f"best_{task.kind.score.name}": progress.best,
        "best_step": progress.best_step,
        "loss": progress.loss,
        "parameters": parameters,
        **measured(loop.clock, loop.device),
        **loop.findings(),
    }
    loop.conclude(values)
    return Result(loop.folder.path, values)


# ----------------------------------------------------------------------------------------------------------------------
# One run from its folder's door to its result: who may write there, what is already finished, and who must end.


D = TypeVar("D")


def in_folder(
    recipe: Training,
    run: Path | str,
    machine: Accelerator,
    *,
    resume: bool,
    on_event: Listener,
    open_data: Callable[[bool], D],
    work: Callable[[Fabric, RunFolder, D, Listener], Result],
) -> Result:
    """`open_data` (told whether this process is the first) and `work` in a folder that is this run's own.

    A finished run is only read. Where one process fails, those that wait for it are ended.
    """
    machine.check_precision(recipe.precision)
    folder = RunFolder(Path(run))
    first = is_rank_zero()
    listen: Listener = on_event if first else lambda event: None
    fabric = None
    try:
        if first:
            folder.claim(recipe, resume=resume)
        finished = folder.result() if resume else None
        if finished is not None:
            listen(Note(f"the run in {folder.path} is finished: nothing is left to do"))
            return Result(folder.path, finished)
        data = open_data(first)
        fabric = machine.fabric(recipe.precision)
        result = work(fabric, folder, data, listen)
        if distributed.world() > 1:
            torch.distributed.destroy_process_group()  # or what this process does next would wait for the others
        return result
    except BaseException:
        if fabric is not None:
            _end_others(fabric)
        raise
    finally:
        folder.release()


def _end_others(fabric: Fabric) -> None:
    """Processes that wait for one that has failed would wait for long."""
    launcher = fabric.strategy.launcher
    for process in getattr(launcher, "procs", ()):
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
