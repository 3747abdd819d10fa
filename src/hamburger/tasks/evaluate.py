"""Score a weights file on a split of a data set, for the task of the weights: what `ham eval` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hamburger.checkpoints.weights_file import Info
from hamburger.devices import pick_device
from hamburger.environment import describe_environment
from hamburger.errors import CheckpointError, NotFiniteError, OptionError, UnknownNameError
from hamburger.tasks import task_of_weights
from hamburger.training.recipe import check_data_options
from hamburger.training.supervised import SINGLE_SCALE, EvaluationProtocol, check_outputs
from hamburger.training.task import Task


@dataclass(frozen=True)
class Evaluation:
    """A network on its device and the split it is scored on."""

    path: Path
    task: Task[Any]
    net: Any
    info: Info
    data: str  # name of the data set
    split: str
    images: Any
    options: dict[str, Any]  # of the data set, beyond those of the training
    device: torch.device

    def row(self, scores: Any, seconds: float) -> dict[str, Any]:
        """One line of a result file."""
        trained = self.info.extra
        return {
            "weights": str(self.path),
            "task": self.task.name,
            "data": self.data,
            "split": self.split,
            **asdict(scores),
            **{key: trained[key] for key in ("recipe", "seed", "context", "step") if key in trained},
            "options": self.options,
            "seconds": round(seconds, 2),
            **describe_environment(self.device.type),
        }


def open_evaluation(
    path: Path,
    *,
    data: Path | None = None,
    dataset: str | None = None,
    split: str = "val",
    options: Mapping[str, Any] | None = None,
    device: str = "auto",
) -> Evaluation:
    """Load a weights file and the split to score it on.

    `dataset` and `options` default to those of the training; "val" is the split that the run was validated on.
    """
    on, task = pick_device(device), task_of_weights(path)
    net, info = task.load(path)
    trained = info.extra
    name = dataset or trained.get("data")
    split = trained.get("val_split", split) if split == "val" else split
    if name is None:
        raise OptionError(f"eval: {path} does not name the data set it was trained on; name one with --dataset")
    if not (isinstance(name, str) and isinstance(split, str)):  # a weights file may come from anybody
        raise CheckpointError(f"eval: {path} does not name its data set and split as text; pass --dataset and --split")
    requested_options, name = dict(options or {}), task.dataset_for(name, data)
    defaults = trained.get("data_options") if name == trained.get("data") else None
    chosen = {**(defaults if isinstance(defaults, dict) else {}), **requested_options}
    check_data_options(f"eval: {path}", chosen)
    try:
        images = task.split(info, name, split, data, chosen)
    except (OptionError, UnknownNameError) as mistake:  # the names may be those in the file
        raise type(mistake)(f"eval: {path}: {mistake}") from None
    task.check_fits(f"eval: {path}", info, images)
    return Evaluation(path, task, net.to(on), info, name, split, images, requested_options, on)


def evaluate_weights(
    path: Path,
    *,
    protocol: EvaluationProtocol = SINGLE_SCALE,
    progress: Callable[[int, int], object] = lambda done, total: None,
    **options: Any,
) -> dict[str, Any]:
    """Return the scores of a weights file as a row for a result file; `options` are those of `open_evaluation`."""
    task = task_of_weights(path)
    if not task.test_time_augmentation and protocol != SINGLE_SCALE:
        raise OptionError(
            f"eval: {path} is for the task '{task.name}', which evaluates each image once, as it is; leave out "
            "scales, flip and window"
        )
    opened = open_evaluation(path, **options)
    start = time.perf_counter()
    try:
        with check_outputs("outputs", task.list_outputs(opened.net)):
            scores = task.evaluate(
                opened.net, opened.images, opened.info, device=opened.device, protocol=protocol, progress=progress
            )
    except NotFiniteError as broken:
        raise NotFiniteError(f"eval: {path}: {broken}") from None
    return opened.row(scores, time.perf_counter() - start)
