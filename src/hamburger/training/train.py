"""Train a recipe into a run folder: lock the folder, start or resume the run, write the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed

from hamburger import distributed
from hamburger.training.accelerator import Accelerator, is_rank_zero
from hamburger.training.builders import set_up_training
from hamburger.training.interrupt import StopSignal
from hamburger.training.metrics_log import Listener, Note, RunStarted
from hamburger.training.recipe import SupervisedTraining, Training
from hamburger.training.run_folder import Result, RunFolder, measurements
from hamburger.training.run_lifecycle import Run
from hamburger.training.task import Task
from hamburger.training.trainer import Trainer

if TYPE_CHECKING:
    from hamburger.training.fabric import Fabric


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
    """Train `recipe` into the folder `run`, or resume it; of a finished run only the result is read.

    `data` is the data folder, for data sets that are not generated. With several `devices` Fabric starts the calling
    script again for each further process, unless `torchrun` has started them all. Ctrl-C and SIGTERM save a checkpoint
    and raise `Interrupted`. With `light`, the checkpoint is deleted when the run finishes.
    """
    machine = Accelerator.choose(accelerator=accelerator, devices=devices, nodes=nodes)
    task.check(recipe, processes=machine.processes)

    def open_data(first: bool) -> Any:
        listen: Listener = on_event if first else lambda event: None
        root = None if data is None else Path(data)
        return task.open(recipe, root, first=first, note=lambda text: listen(Note(text)))

    def work(fabric: Fabric, folder: RunFolder, opened: Any, listen: Listener) -> Result:
        prepare_device(machine, fabric, fixed_batch_size=task.fixed_batch_size)
        with fabric.rank_zero_first():  # pretrained weights are downloaded once for all processes
            torch.manual_seed(recipe.seed)
            net = task.build(recipe, opened)
        setup = set_up_training(recipe, recipe.optim, fabric, net)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        with StopSignal() as stop:
            trainer = Trainer(task, recipe, opened, setup, fabric, folder, stop, listen)
            trainer.light = light
            start_or_resume(trainer, resume, parameters, len(opened.train), len(opened.val), task.notes(recipe, net))
            trainer.run()
        return _finish(task, recipe, trainer, parameters)

    return run_in_folder(recipe, run, machine, resume=resume, on_event=on_event, open_data=open_data, work=work)


def _finish(task: Task[R], recipe: R, trainer: Trainer[R], parameters: int) -> Result:
    progress = trainer.progress
    assert progress.scores is not None
    values = {
        "recipe": recipe.name,
        "task": task.name,
        **task.about(recipe),
        "seed": recipe.seed,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "precision": recipe.precision,
        **progress.scores,
        f"best_{task.score.name}": progress.best,
        "best_step": progress.best_step,
        "loss": progress.loss,
        "parameters": parameters,
        **measurements(trainer.clock, trainer.device),
        **task.extra_results(recipe, trainer.folder),
    }
    trainer.conclude(values)
    return Result(trainer.folder.path, values)


# -- shared with GAN training ------------------------------------------------------------------------------------------


def prepare_device(machine: Accelerator, fabric: Fabric, *, fixed_batch_size: bool = True) -> None:
    """Set up the GPU before anything is allocated on it."""
    if machine.accelerator == "cuda":
        torch.backends.cudnn.benchmark = fixed_batch_size  # choosing algorithms by trial pays if sizes stay the same
        torch.cuda.reset_peak_memory_stats(fabric.device)


def start_or_resume(
    run: Run[Any, Any],
    resume: bool,
    parameters: int,
    train_images: int,
    val_images: int | None,
    notes: Iterable[str] = (),
) -> None:
    """Load the last checkpoint if `resume` is set and there is one; write recipe.json and announce the run."""
    recipe, folder = run.recipe, run.folder
    torch.manual_seed(recipe.seed)  # building the network drew numbers; all processes start with the same state
    resumed = resume and run.restore()
    if run.first:
        folder.begin(recipe)
        if resume and not resumed:
            run.listen(Note(f"{folder.path} has no checkpoint yet: starting at step 0"))
        for note in notes:
            run.listen(Note(note))
    run.listen(
        RunStarted(
            run=folder.path,
            step=run.progress.step,
            steps=recipe.steps,
            parameters=parameters,
            train_images=train_images,
            val_images=val_images,
            device=str(run.device),
            processes=distributed.world_size(),
        )
    )


D = TypeVar("D")


def run_in_folder(
    recipe: Training,
    run: Path | str,
    machine: Accelerator,
    *,
    resume: bool,
    on_event: Listener,
    open_data: Callable[[bool], D],
    work: Callable[[Fabric, RunFolder, D, Listener], Result],
) -> Result:
    """Lock the folder, call `open_data` (with whether this process has rank 0), start Fabric, call `work`.

    Of a finished run only the result is read. Where this process fails, those that wait for it are killed.
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
        if distributed.world_size() > 1:
            torch.distributed.destroy_process_group()  # or what this process does next would wait for the others
        return result
    except BaseException:
        if fabric is not None:
            fabric.kill_processes()
        raise
    finally:
        folder.release()
