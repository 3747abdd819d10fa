"""Train a recipe into a run folder: lock the folder, start or resume the run, write the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed

from hamburger import distributed
from hamburger.errors import OptionError, TrainingError, check_path
from hamburger.files import DISK_FULL
from hamburger.training.accelerator import Accelerator, is_rank_zero
from hamburger.training.metrics_log import CheckProgress, Listener, Note, RunStarted
from hamburger.training.recipe import SupervisedTraining, Training, find_recipes, read_device
from hamburger.training.run_folder import Result, RunFolder, measurements
from hamburger.training.run_lifecycle import Run, StopSignal, describe_full_disk
from hamburger.training.task import Task
from hamburger.training.trainer import Trainer

R = TypeVar("R", bound=SupervisedTraining)


def train(
    task: Task[R],
    recipe: R,
    run: Path | str,
    *,
    data: Path | str | None = None,
    devices: int = 1,
    accelerator: str = "auto",
    strategy: str = "ddp",
    resume: bool = False,
    light: bool = False,
    profile: bool = False,
    on_event: Listener = lambda event: None,
) -> Result:
    """Train `recipe` into the folder `run`, or resume it; of a finished run only the result is read.

    `data` is the data folder, for data sets that are not generated. With several `devices` it starts the calling
    script again for each further process, unless `torchrun` has started them all. `strategy` is "ddp", or "fsdp", which
    shards parameters and optimizer state over the processes. Ctrl-C and SIGTERM save a checkpoint and raise
    `Interrupted`. With `light`, the checkpoint is deleted when the run finishes. `profile` writes where the time of
    some early steps went to `profile.txt`.
    """
    hardware = Accelerator(accelerator, devices=devices, precision=recipe.precision, strategy=strategy)
    task.check(recipe, processes=hardware.processes)
    if hardware.sharded and recipe.compile:
        raise OptionError("train: --strategy fsdp does not compile the network; --set compile=false")
    if profile:
        from hamburger.training.profile import STEPS, StepProfile

        if recipe.steps < STEPS:
            raise OptionError(f"train: a profile needs {STEPS} steps (got steps={recipe.steps}); raise steps")
    listen: Listener = on_event if is_rank_zero() else lambda event: None
    with open_folder(recipe, run, hardware, resume=resume) as folder:
        if resume and (values := folder.result()) is not None:
            listen(Note(f"the run in {folder.path} is finished: nothing is left to do"))
            return Result(folder.path, values)
        advise_on_device(recipe, task.recipes, hardware, listen)
        if data is not None:
            check_path("train", "data", data)
        root = None if data is None else Path(data)
        new = is_rank_zero() and not resume  # reading millions of files takes minutes: once per run
        opened = task.open(
            recipe,
            root,
            check=new,
            note=lambda text: listen(Note(text)),
            progress=lambda done, total: listen(CheckProgress(done, total)),
        )
        hardware.launch()
        with hardware.rank_zero_first():  # pretrained weights are downloaded once for all processes
            torch.manual_seed(recipe.seed)
            net = task.build(recipe, opened)
        hardware.autotune(net, fixed_batch_size=task.fixed_batch_size)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        with StopSignal() as stop:
            trainer = Trainer(task, recipe, opened, net, hardware, folder, stop, listen)
            trainer.light = light
            if profile and is_rank_zero():
                trainer.profile = StepProfile(folder.path, trainer.device, lambda text: listen(Note(text)))
            start_or_resume(trainer, resume, parameters, len(opened.train), len(opened.val), task.notes(recipe, net))
            trainer.run()
        return _finish(task, recipe, trainer, parameters)


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
        f"best_{task.metric.name}": progress.best,
        "best_step": progress.best_step,
        "loss": progress.loss,
        "parameters": parameters,
        **measurements(trainer.clock, trainer.device),
        **task.extra_results(recipe, trainer.folder),
    }
    trainer.conclude(values)
    return Result(trainer.folder.path, values)


# -- shared with GAN training ------------------------------------------------------------------------------------------


@contextmanager
def open_folder(recipe: Training, run: Path | str, accelerator: Accelerator, *, resume: bool) -> Iterator[RunFolder]:
    """Lock the run folder while the block runs. Where the block fails, kill the processes that wait for this one."""
    check_path("train", "run", run)
    folder = RunFolder(Path(run))
    try:
        if is_rank_zero():
            folder.claim(recipe, resume=resume)
        yield folder
        if distributed.world_size() > 1:
            torch.distributed.destroy_process_group()  # or what this process does next would wait for the others
    except BaseException as error:
        accelerator.kill_processes()
        if not (isinstance(error, OSError) and error.errno in DISK_FULL):
            raise
        then = "continue with --resume" if folder.holds_run() else "start again"
        raise TrainingError(f"train: {describe_full_disk(folder.path, error)}, then {then}") from error
    finally:
        folder.release()


def advise_on_device(
    recipe: Any, recipes: Mapping[str, Callable[..., Any]], accelerator: Accelerator, listen: Listener
) -> None:
    """Say where a recipe for a GPU is about to run on a CPU, and name recipes for a CPU."""
    if accelerator.on_gpu or recipe.name not in recipes or read_device(recipes[recipe.name]) != "GPU":
        return
    names = find_recipes(recipes, "CPU", recipe.data.name)
    listen(Note(f"the recipe '{recipe.name}' is meant for a GPU and runs on a CPU here; for a CPU: {', '.join(names)}"))


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
