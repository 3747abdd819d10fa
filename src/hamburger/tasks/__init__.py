"""The tasks, each in a file of its own; `engine/task.py` says what a task is and how to add one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hamburger.checkpoints.weights_file import read_task_name
from hamburger.classification.task import Classes
from hamburger.detection.task import Detection
from hamburger.segmentation.task import Segmentation
from hamburger.stereo.task import Stereo
from hamburger.tasks.recipes import kind_named, kind_of
from hamburger.training.recipe import SupervisedTraining
from hamburger.training.run_folder import Result
from hamburger.training.task import Task
from hamburger.training.train import train as train_task

tasks: dict[str, Task[Any]] = {task.kind.task: task for task in (Segmentation(), Classes(), Detection(), Stereo())}


def task_of(recipe: SupervisedTraining) -> Task[Any]:
    return tasks[kind_of(recipe).task]


def task_of_weights(path: Path) -> Task[Any]:
    """By what the file says; one that cannot be read is taken for a segmentation network, and loading it complains."""
    return tasks[kind_named(read_task_name(path), f"weights: {path}").task]


def train(recipe: SupervisedTraining, run: Path | str, **options: Any) -> Result:
    """Train a recipe of any task; options and result are those of `engine.train.train`."""
    return train_task(task_of(recipe), recipe, run, **options)
