"""The supervised tasks by name, and training a recipe of any of them; `training/task.py` says how to add a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hamburger.classification.task import CLASSIFICATION
from hamburger.detection.task import DETECTION
from hamburger.errors import InputError, did_you_mean
from hamburger.segmentation.task import SEGMENTATION
from hamburger.stereo.task import STEREO
from hamburger.training.recipe import SupervisedTraining
from hamburger.training.task import Task

if TYPE_CHECKING:
    from hamburger.training.metrics_log import Listener
    from hamburger.training.run_folder import Result

tasks: dict[str, Task[Any]] = {task.name: task for task in (SEGMENTATION, CLASSIFICATION, DETECTION, STEREO)}


def task_of(recipe: object) -> Task[Any]:
    """The task that a recipe belongs to, by the recipe's class."""
    for task in tasks.values():
        if type(recipe) is task.recipe:
            return task
    raise InputError(f"train: no task trains a {type(recipe).__name__}; give a recipe of `ham list recipes`")


def task_named(name: object, source: str) -> Task[Any]:
    """The task by the value of "task" in `source`; segmentation, the oldest task, writes none."""
    if name is None:
        return SEGMENTATION
    if not isinstance(name, str) or name not in tasks:
        raise InputError(f"{source} is for the task {name!r}, which is not known{did_you_mean(str(name), tasks)}")
    return tasks[name]


def task_of_weights(path: Path) -> Task[Any]:
    """The task named in a weights file; segmentation for a file that cannot be read, whose loading then fails."""
    from hamburger.checkpoints.weights_file import read_task_name

    return task_named(read_task_name(path), f"weights: {path}")


def train(
    recipe: str | Path | SupervisedTraining,
    run: Path | str,
    *,
    overrides: Mapping[str, Any] | None = None,
    data: Path | str | None = None,
    devices: int = 1,
    nodes: int = 1,
    accelerator: Literal["auto", "cpu", "cuda"] = "auto",
    resume: bool = False,
    light: bool = False,
    on_event: Listener = lambda event: None,
) -> Result:
    """Train a recipe of any task into the folder `run` and return its result.

    >>> result = hb.train("patchwork", "runs/patchwork", overrides={"steps": 200, "model.context": "vq"})
    >>> result.values["miou"]

    - `recipe`: a name of `ham list recipes`, the path of a `recipe.json`, or a recipe
    - `overrides`: new values of fields by their dotted names, as `ham train --set` takes them
    - `data`: the data folder; embedded data sets need none
    - `devices`, `nodes`, `accelerator`: processes on this machine, machines, and "auto", "cpu" or "cuda"
    - `resume`: continue from the last checkpoint in `run`; of a finished run only the result is read
    - `light`: delete the checkpoint when the run finishes
    - `on_event`: called with every event of `hamburger.training.metrics_log`, for a display

    Ctrl-C and SIGTERM save a checkpoint and raise `hamburger.errors.Interrupted`.
    """
    from hamburger.tasks.recipes import find_training
    from hamburger.training.recipe import override
    from hamburger.training.train import train

    chosen = find_training(str(recipe)) if isinstance(recipe, (str, Path)) else recipe
    chosen = override(chosen, overrides or {})
    return train(
        task_of(chosen),
        chosen,
        run,
        data=data,
        devices=devices,
        nodes=nodes,
        accelerator=accelerator,
        resume=resume,
        light=light,
        on_event=on_event,
    )
