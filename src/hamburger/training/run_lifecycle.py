"""The lifecycle of a run: log, checkpoints, resume, and a clear end when something fails. Shared by all trainers."""

from __future__ import annotations

import errno
import signal
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.distributed
from torch import Tensor

from hamburger import devices, distributed
from hamburger.environment import hardware_name
from hamburger.errors import CheckpointError, DataError, HamburgerError, Interrupted, TrainingError
from hamburger.files import DISK_FULL
from hamburger.tensors import debugging, list_tensors
from hamburger.training import checkpoint
from hamburger.training.checkpoint import Progress, random_states, set_random_state
from hamburger.training.metrics_log import (
    CheckpointSaved,
    Listener,
    LossRecord,
    Note,
    StepLogged,
    ThroughputClock,
    add_to_tensorboard,
)
from hamburger.training.recipe import Training, digest
from hamburger.training.run_folder import METRICS, TIMINGS, RunFolder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from hamburger.training.accelerator import Accelerator


R = TypeVar("R", bound=Training)
P = TypeVar("P", bound=Progress)


class Run(ABC, Generic[R, P]):
    """One run in one process. All processes make the same collective calls in the same order.

    A subclass implements `steps`: it trains from `progress.step` to the last step, and calls `done`, `log_if_due`,
    `save` and `stop_if_requested` as it goes.
    """

    def __init__(
        self, recipe: R, accelerator: Accelerator, folder: RunFolder, stop: StopSignal, listen: Listener, progress: P
    ) -> None:
        self.recipe, self.accelerator, self.device = recipe, accelerator, accelerator.device
        self.folder, self.stop, self.listen, self.progress = folder, stop, listen, progress
        self.record = LossRecord(self.device)
        self.clock = ThroughputClock()
        self.first = distributed.rank() == 0
        self.tensorboard: SummaryWriter | None = None
        self.saved: int | None = None  # the step of the last good checkpoint
        self.light = False  # write no checkpoint of the last step
        self._first_step = True  # of this process
        self._unmeasured = 0  # images in the clock's current interval
        self._waited = 0.0  # seconds of waiting for data before the clock's current interval

    # -- implemented by each trainer -----------------------------------------------------------------------------

    changed_data_advice = (
        "its images or classes are not those it was trained on; give the same --data, or begin a new run"
    )

    @abstractmethod
    def steps(self) -> None:
        """Train from `progress.step` to the last step."""

    @abstractmethod
    def waited(self) -> float:
        """Seconds spent waiting for data so far."""

    @abstractmethod
    def data_digest(self) -> str:
        """A digest of what decides which images a step sees."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Networks and optimizers, for the checkpoint; all tensors in it must be finite."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""

    @abstractmethod
    def metrics_row(self, terms: dict[str, float]) -> dict[str, Any]:
        """A line of metrics.jsonl from the means of the recorded terms, with at least `loss` and `lr`."""

    @abstractmethod
    def advice_after_divergence(self) -> str:
        """What to do about a run that has diverged."""

    def progress_text(self, row: dict[str, Any]) -> str:
        """What to show instead of the loss; nothing: the loss."""
        return ""

    def keep(self) -> None:
        """Write the files that belong to the checkpoint just written or resumed from."""

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make all steps. Where data, disk, memory or another process fail, raise a TrainingError that says so."""
        if self.recipe.tensorboard and self.first:
            from torch.utils.tensorboard import SummaryWriter

            # purge_step hides what an interrupted run wrote after its last checkpoint
            self.tensorboard = SummaryWriter(
                str(self.folder.to_write("tensorboard")), purge_step=self.progress.step + 1
            )
        try:
            self.steps()
        except (DataError, OSError) as error:
            raise TrainingError(self._stopped(error)) from error
        except torch.OutOfMemoryError as error:
            peak = (devices.peak_memory(self.device) or 0) / 2**20
            raise TrainingError(
                f"train: the device ran out of memory in step {self.progress.step + 1}, with {peak:,.0f} MiB in use; "
                f"--set accumulate={2 * self.recipe.accumulate}, a smaller batch or another context; "
                f"{self._how_to_resume()}"
            ) from error
        except RuntimeError as error:
            if distributed.world_size() == 1 or not is_lost_peer(error):
                raise
            raise TrainingError(
                f"train: another process ended at step {self.progress.step}, and this one cannot continue alone; "
                f"{self._how_to_resume()}"
            ) from error
        finally:
            if self.tensorboard is not None:
                self.tensorboard.close()

    def done(self, step: int, terms: dict[str, Tensor], ids: list[str]) -> None:
        """Record the loss terms of a finished step and the images it saw."""
        self.record.add(step, terms, ids)
        self.progress.step = step + 1
        self._unmeasured += self.recipe.batch
        if self._first_step and self.first and self.device.type == "cpu":
            self._announce_duration()
        self._first_step = False

    def _announce_duration(self) -> None:
        """Say after the first step on a CPU how long the others will take: the first line of the log may be far."""
        seconds = self.clock.elapsed()
        remaining = timedelta(seconds=round(seconds * (self.recipe.steps - self.progress.step)))
        if remaining < timedelta(minutes=1):
            return
        advice = "; use a GPU, fewer steps or smaller images" if remaining > timedelta(hours=1) else ""
        self.listen(Note(f"the first step took {seconds:.1f} s on a CPU: about {remaining} left{advice}"))

    def _due(self, every: int) -> bool:
        step = self.progress.step
        return step > 0 and (step % every == 0 or step == self.recipe.steps)

    # -- log -----------------------------------------------------------------------------------------------------

    def log_if_due(self) -> None:
        """Check the losses and write a line of the log, every `log_every` steps; on one CPU check every step."""
        due = self._due(self.recipe.log_every)
        if due or self._alone_on_cpu:
            self.check_finite()
        if due:
            self.log()

    @property
    def _alone_on_cpu(self) -> bool:
        """Whether reading a loss costs nothing: no device to synchronise, no other process."""
        return distributed.world_size() == 1 and self.device.type == "cpu"

    def log(self) -> None:
        """Write the mean terms since the last line to metrics.jsonl, and the speed to timings.jsonl."""
        values = self.record.global_values().cpu().double().mean(0).tolist()
        terms = dict(zip(self.record.names, values, strict=True))
        self.record.clear()
        step = self.progress.step
        row = self.metrics_row(terms)
        self.progress.loss = row["loss"]
        images_per_s, data_wait = self.end_interval()
        if debugging() and not distributed.is_equal_on_all_ranks(torch.get_rng_state().to(self.device)):
            raise TrainingError(f"train: random state diverged between ranks at step {step}")
        if not self.first:
            return
        self.write(row)
        timing = {"images_per_s": round(images_per_s, 2), "data_wait": round(data_wait, 4)}
        self.folder.append(TIMINGS, {"step": step, **timing})
        left = (self.recipe.steps - step) * self.recipe.batch
        remaining = left / self.clock.images_per_s if self.clock.images_per_s else 0.0
        self.listen(
            StepLogged(step, row["loss"], row["lr"], images_per_s, data_wait, remaining, self.progress_text(row))
        )

    def write(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl, and to TensorBoard where the recipe asks for it."""
        self.folder.append(METRICS, row)
        if self.tensorboard is not None:
            add_to_tensorboard(self.tensorboard, row)

    def end_interval(self) -> tuple[float, float]:
        """End the clock's current interval: its images per second, and the share of its time spent on data."""
        waited = self.waited()
        speed = self.clock.end_interval(self._unmeasured, waited - self._waited)
        self._unmeasured, self._waited = 0, waited
        return speed

    # -- divergence ----------------------------------------------------------------------------------------------

    def check_finite(self) -> None:
        """Raise where the loss of a recorded step is not finite on the global batch."""
        values, record = self.record.global_values(), self.record
        broken = (~values.isfinite()).any(1).nonzero().flatten().tolist()
        if not broken:
            return
        row = broken[0]
        terms = ", ".join(f"{name} {value:g}" for name, value in zip(record.names, values[row].tolist(), strict=True))
        ids = [name for rank_ids in distributed.gather_objects(record.ids[row]) for name in rank_ids]
        images = f"; its images were {', '.join(ids)}" if ids else ""
        raise TrainingError(
            f"train: the loss is not finite at step {record.steps[row] + 1} ({terms}){images}; {self.last_written()}; "
            f"{self.advice_after_divergence()}"
        )

    def check_weights(self) -> None:
        """Raise where weights or optimizer state are not finite: the loss was computed before the last update."""
        tensors = [tensor for tensor in list_tensors(self.state()) if tensor.is_floating_point()]
        if not bool(torch.stack([tensor.isfinite().all().to(self.device) for tensor in tensors]).all()):
            raise TrainingError(
                f"train: the weights are not finite after step {self.progress.step}; {self.last_written()}; "
                f"{self.advice_after_divergence()}"
            )

    def last_written(self) -> str:
        """The last checkpoint, without advice to resume: the same settings would diverge again."""
        if self.saved is None:
            return "no checkpoint had been written yet"
        return f"the last good checkpoint is {self.folder.path / checkpoint.LAST}, of step {self.saved}"

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Check that everything is finite, then write a checkpoint and the files that belong to it."""
        self.check_finite()
        self.check_weights()
        if self.light and self.progress.step == self.recipe.steps:
            if self.first:
                self.keep()
            self.accelerator.barrier()
            return
        state = {
            "recipe": digest(self.recipe),
            "data": self.data_digest(),
            "progress": asdict(self.progress),
            "record": self.record.state(),
            "precision": self.accelerator.scaler.state_dict(),
            "random": random_states(self.device),
            "clock": self.clock.state(self.device, self._hardware),
            **self.state(),
        }
        if self.first:
            state["metrics"] = self.folder.sync_log()
            path = self.folder.to_write(checkpoint.LAST)
            checkpoint.save(path, state)
            self.saved = self.progress.step
            self.keep()  # after the checkpoint: if the run is killed in between, resuming writes them again
            self.listen(CheckpointSaved(self.progress.step, path))
        self.saved = self.progress.step
        self.accelerator.barrier()

    def restore(self) -> bool:
        """Load the last checkpoint; False where there is none and the run starts at step 0."""
        loaded = checkpoint.load(self.folder.path)
        if loaded is None:
            if self.first:
                self.folder.cut_log(0)
            return False
        if self.first:
            for note in loaded.notes:
                self.listen(Note(f"{note}; resuming from {loaded.path.name}"))
        try:
            self._apply(loaded)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as damage:
            if isinstance(damage, (HamburgerError, torch.OutOfMemoryError)):
                raise
            why = ascii(" ".join(str(damage).split())[:200])[1:-1]
            raise CheckpointError(
                f"train: {loaded.path} does not hold the state of this run ({type(damage).__name__}: {why}); remove it "
                f"to resume from {checkpoint.PREVIOUS}, or start again in another folder"
            ) from damage
        return True

    def _apply(self, loaded: checkpoint.LoadedCheckpoint) -> None:
        state = loaded.state
        if state["recipe"] != digest(self.recipe):
            raise TrainingError(f"train: {loaded.path} was written by a run of another recipe; name another folder")
        if state["data"] != self.data_digest():
            raise CheckpointError(f"train: {loaded.path} was written with other data: {self.changed_data_advice}")
        self.progress = type(self.progress)(**state["progress"])
        self.progress.check(self.recipe.steps)
        self.record.load(state["record"])
        self.load(state)
        self.accelerator.scaler.load_state_dict(state["precision"])
        set_random_state(state["random"], self.device)
        self.clock.load(state.get("clock", {}), self._hardware)  # older checkpoints have none
        self.saved = self.progress.step
        if self.first:
            self.folder.cut_log(state["metrics"])
            self.keep()

    @property
    def _hardware(self) -> str:
        """Times and memory are added to those of an earlier part of the run only if this is the same."""
        return f"{distributed.world_size()} x {hardware_name(self.device.type)}"

    def conclude(self, values: dict[str, Any]) -> None:
        """Write the result of the finished run."""
        if self.first:
            self.folder.write_result(values)
            if self.light:
                for name in (checkpoint.LAST, checkpoint.PREVIOUS):
                    (self.folder.path / name).unlink(missing_ok=True)

    # -- stopping ------------------------------------------------------------------------------------------------

    def stop_if_requested(self) -> None:
        requested = bool(self.stop)
        if distributed.world_size() > 1:
            if not self._due(self.recipe.log_every):  # asking the other processes at every step would cost too much
                return
            requested = bool(distributed.sum_over_ranks(torch.tensor(int(requested), device=self.device)))
        if requested:
            self.interrupt()

    def interrupt(self) -> None:
        """Save a checkpoint and raise Interrupted."""
        if self.progress.step != self.saved or self.progress.step == 0:
            self.light = False  # this run will be resumed
            devices.synchronize(self.device)
            self.end_interval()
            self.save()
        raise Interrupted(f"stopped at step {self.progress.step} of {self.recipe.steps}; {self._how_to_resume()}")

    def _stopped(self, error: Exception) -> str:
        """The message for failing files. A single process first saves the last complete step if it can."""
        reason = str(error)
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            reason = describe_full_disk(self.folder.path, error)
        message = f"train: stopped at step {self.progress.step} of {self.recipe.steps}: {reason}"
        if isinstance(error, DataError) and distributed.world_size() == 1 and self.progress.step != self.saved:
            with suppress(OSError, TrainingError):
                self.light = False
                self.save()
        return f"{message}; {self._how_to_resume()}"

    def _how_to_resume(self) -> str:
        if self.saved is None:
            return "no checkpoint had been written yet"
        path = self.folder.path / checkpoint.LAST
        return f"the last checkpoint is {path}, of step {self.saved}: continue with --resume"


def describe_full_disk(folder: Path, error: OSError) -> str:
    """What happened and what to do; a file that the error does not name is in `folder`."""
    folder = Path(error.filename).parent if isinstance(error.filename, str) else folder
    if error.errno == errno.EFBIG:
        return f"a file in {folder} exceeds the size limit of the system ({error.strerror}); raise it (ulimit -f)"
    return f"the disk of {folder} is full ({error.strerror}); free some space"


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether a collective failed because another process is gone."""
    message = str(error)
    return isinstance(error, torch.distributed.DistError) or "by peer" in message or "Broken pipe" in message


# -- signals -----------------------------------------------------------------------------------------------------------


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """`with StopSignal() as stop:` makes `stop` true on Ctrl-C or SIGTERM; a second one acts as usual."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.received

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # Python handles signals in the main thread only
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        self._restore()

    def _restore(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    __exit__ = _restore
