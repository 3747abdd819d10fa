"""A run folder: its files, its lock, its log and its result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from hamburger import distributed
from hamburger.environment import describe_environment
from hamburger.errors import CheckpointError, DataError, OptionError, TrainingError, shorten
from hamburger.files import (
    encode_json,
    is_number,
    lock,
    open_own,
    read_json_object,
    read_text,
    remove_partial_files,
    write_durably,
)
from hamburger.kernels.dispatch import BACKEND_VARIABLE
from hamburger.training import checkpoint
from hamburger.training.metrics_log import ThroughputClock
from hamburger.training.recipe import Training, differences, read_recipe, to_json

if TYPE_CHECKING:
    from hamburger.training.task import Task

LOCK = ".lock"
RECIPE, RESULT, BEST = "recipe.json", "result.json", "best.safetensors"
METRICS, TIMINGS = "metrics.jsonl", "timings.jsonl"


def in_use(path: Path) -> bool:
    """Whether another process is training in this folder now.

    Do not call it from the process that trains there: closing the file would release its lock (POSIX).
    """
    try:
        with (path / LOCK).open("r+b") as file:
            return not lock(file, wait=False)
    except OSError:  # no such run
        return False


class RunFolder:
    """`recipe.json`, `metrics.jsonl`, `timings.jsonl`, `last.ckpt`, `previous.ckpt`, `best.safetensors`, `result.json`.

    The metrics of two equal runs are equal to the last bit, also after interruptions. So times go to the timings.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None

    def claim(self, recipe: Training, *, resume: bool) -> None:
        """Create and lock the folder; raise where it cannot be used for this run. A finished run is only read."""
        if self.path.exists() and not self.path.is_dir():
            raise OptionError(f"train: --run {self.path} is a file; name a folder")
        if resume and not self.holds_run():
            raise OptionError(
                f"train: {self.path} holds no run to resume; check --run, or leave out --resume to start a new run"
            )
        if not (resume and (self.path / RESULT).exists()):
            self._lock_folder()
        if not resume and self.holds_run():
            raise OptionError(
                f"train: {self.path} already holds a run; continue it with --resume, or name another folder"
            )
        if (self.path / RECIPE).exists():
            self._compare_recipe(recipe)

    def holds_run(self) -> bool:
        return (self.path / RECIPE).exists() or (self.path / checkpoint.LAST).exists()

    def _lock_folder(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = open_own(self.path / LOCK, "ab")
        if not lock(self._lock, wait=False):
            self.release()
            raise OptionError(f"train: another process is training in {self.path}; wait for it, or name another folder")
        remove_partial_files(self.path, RECIPE, RESULT, "*.ckpt", "*.safetensors", "samples/*")

    def _compare_recipe(self, recipe: Training) -> None:
        """Raise where the run in the folder was started with another recipe."""
        try:
            changed = differences(recipe, read_recipe(read_text(self.path / RECIPE, "train"), type(recipe), RECIPE))
        except OptionError as misfit:
            raise CheckpointError(
                f"train: the run in {self.path} was started with a recipe of another kind than '{recipe.name}' "
                f"({misfit}); name another folder"
            ) from None
        if changed:
            raise CheckpointError(
                f"train: the run in {self.path} was started with another recipe ({'; '.join(changed)}); "
                f"give the same settings to resume it, or name another folder"
            )

    def begin(self, recipe: Training) -> None:
        """Write recipe.json. Called after all checks, so that a mistyped option leaves no run behind."""
        if not (self.path / RECIPE).exists():
            write_durably(self.to_write(RECIPE), to_json(recipe).encode())

    def to_write(self, name: str) -> Path:
        """The path of a file that is about to be written; raise where the folder is no longer the one it was.

        Writing would create the folder again, with half a run in it.
        """
        if self._lock is not None:
            try:
                same = os.path.samestat(os.fstat(self._lock.fileno()), (self.path / LOCK).stat())
            except (FileNotFoundError, NotADirectoryError):
                same = False
            if not same:
                raise TrainingError(
                    f"train: {self.path} was removed, moved or replaced during the run, and what it held with it; "
                    f"move it back and --resume, or start again in another folder"
                )
        return self.path / name

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def result(self) -> dict[str, Any] | None:
        """The result of a finished run; None where it is not finished."""
        path = self.path / RESULT
        if not path.exists():
            return None
        try:
            return read_result(path, "train")
        except DataError as broken:
            raise TrainingError(f"{broken}; remove it and --resume to write it again") from None

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_durably(self.to_write(RESULT), (encode_json(result, indent=2) + "\n").encode())
        self.to_write(RESULT)  # raises where the folder was removed since the last look

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Add a row to the metrics or the timings."""
        with open_own(self.to_write(name), "ab") as file:  # closed at once, so a killed run keeps its lines
            file.write((encode_json(row) + "\n").encode())

    def sync_log(self) -> int:
        """Sync the metrics to disk; return their length in bytes, for the checkpoint."""
        with open_own(self.to_write(METRICS), "ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def cut_log(self, length: int) -> None:
        """Cut off the metrics of steps after the checkpoint, which will be made again."""
        if length < 0:
            raise ValueError(f"the metrics cannot have {shorten(length)} bytes")
        with open_own(self.to_write(METRICS), "ab") as file:
            if file.tell() > length:
                file.truncate(length)
                os.fsync(file.fileno())


# -- result ------------------------------------------------------------------------------------------------------------


def read_result(path: Path, call: str, task: Task[Any] | None = None) -> dict[str, Any]:
    """The content of a result.json; DataError where it is damaged or, if `task` is given, not a result of that task."""
    values = read_json_object(path, call)
    if task is not None and values.setdefault("task", task.name) != task.name:
        raise DataError(f"{call}: {path} has task {shorten(values['task'])}, its recipe {task.name}")
    if task is not None and not is_number(values.get(task.metric.name)):
        raise DataError(f"{call}: {path} has no number '{task.metric.name}'; it is not the result of a run")
    return values


# fields of the result in which two equal runs may differ
MEASURED = ("images_per_s", "peak_mb", "data_wait", "seconds", "date")


@dataclass(frozen=True)
class Result:
    """`values` is `result.json`; its scores are those of the last step, not of the best one."""

    run: Path
    values: dict[str, Any]


def measurements(clock: ThroughputClock, device: torch.device) -> dict[str, Any]:
    """Fields of the result on time, memory, hardware and versions."""
    return {
        "processes": distributed.world_size(),
        **describe_environment(device.type),
        "backend": os.environ.get(BACKEND_VARIABLE, "auto"),
        "images_per_s": None if clock.images_per_s is None else round(clock.images_per_s, 2),
        "peak_mb": round(clock.peak_mb(device), 1),
        "data_wait": round(clock.data_wait, 4),
        "seconds": round(clock.seconds, 2),
    }
