"""The training loop: steps, log, validation, checkpoints, resume, and an orderly end when something fails."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.environment import hardware_name
from hamburger.errors import CheckpointError, DataError, Interrupted, TrainingError
from hamburger.shapes import debugging
from hamburger.training import checkpoint
from hamburger.training.builders import Assembly
from hamburger.training.checkpoint import Progress, ScoredProgress, random_states, set_random_state
from hamburger.training.interrupt import StopRequest
from hamburger.training.loss_weighting import gathered, lost_peer
from hamburger.training.metrics_log import (
    Clock,
    Evaluated,
    Listener,
    Logged,
    Note,
    Record,
    Saved,
    TensorBoardLog,
    first_bad,
)
from hamburger.training.optim import learning_rate, set_rate
from hamburger.training.recipe import SupervisedTraining, Training
from hamburger.training.recipe_io import digest
from hamburger.training.run_folder import BEST, RunFolder

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from hamburger.training.task import Task


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

R = TypeVar("R", bound=Training)
P = TypeVar("P", bound=Progress)


class Run(ABC, Generic[R, P]):
    """One run in one process. Everything that all processes must do together is done by all, in the same order."""

    def __init__(
        self, recipe: R, fabric: Fabric, folder: RunFolder, stop: StopRequest, listen: Listener, progress: P
    ) -> None:
        self.recipe, self.fabric, self.folder, self.stop, self.listen = recipe, fabric, folder, stop, listen
        self.device = fabric.device
        self.progress = progress
        self.record = Record(recipe.log_every, self.device)
        self.clock = Clock()
        self.first = distributed.rank() == 0
        self.board: TensorBoardLog | None = None
        self.saved: int | None = None  # the step of the last good checkpoint
        self.light = False  # no checkpoint of the last step: nobody will go on from there
        self._unmeasured = 0  # images since the clock's last lap
        self._waited = 0.0  # of the feed, at the clock's last lap

    # -- what each kind of training says for itself --------------------------------------------------------------

    @abstractmethod
    def steps(self) -> None:
        """From where the progress stands to the last step, `after_step` behind each."""

    @abstractmethod
    def milestones(self) -> None:
        """What is due after this step beside its line of the log: scores, samples, checkpoints."""

    @abstractmethod
    def waited(self) -> float:
        """Seconds that were spent waiting for data."""

    @abstractmethod
    def data_digest(self) -> str:
        """Of what decides which images a step sees."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """All that must be finite for the run to be worth going on with."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Networks and optimisers, for the checkpoint; all processes call this together."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Back to what `state` returned."""

    @abstractmethod
    def line(self, terms: dict[str, float]) -> dict[str, Any]:
        """A line of the metrics from the means of the recorded terms, with `loss` and `lr` at least."""

    @abstractmethod
    def cures(self) -> str:
        """What to do about a run that has diverged."""

    def words(self, row: dict[str, Any]) -> str:
        """What to show of a line where its loss alone does not say it."""
        return ""

    def keep(self) -> None:
        """Files that belong to the checkpoint which has just been written, or which has been resumed from."""

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        if self.recipe.tensorboard and self.first:
            self.board = TensorBoardLog(self.folder.path / "tensorboard", self.progress.step)
        try:
            self.steps()
        except (DataError, OSError) as trouble:
            raise TrainingError(self._stopped(trouble)) from trouble
        except torch.OutOfMemoryError as full:
            taken = torch.cuda.max_memory_allocated(self.device) / 2**20 if self.device.type == "cuda" else 0
            raise TrainingError(
                f"train: the device ran out of memory in step {self.progress.step + 1}, with {taken:,.0f} MiB taken; "
                f"--set accumulate={2 * self.recipe.accumulate}, a smaller batch or another context; "
                f"{self._last_good()}"
            ) from full
        except RuntimeError as trouble:
            if distributed.world() == 1 or not lost_peer(trouble):
                raise
            said = f"train: another process ended at step {self.progress.step}, and this one cannot go on alone"
            raise TrainingError(f"{said}; {self._last_good()}") from trouble
        finally:
            if self.board is not None:
                self.board.close()

    def after_step(self) -> None:
        if self._due(self.recipe.log_every) or self._alone_on_cpu:
            self.check_finite()
        if self._due(self.recipe.log_every):
            self.log()
        self.milestones()
        if self._asked_to_stop():
            self.interrupt()

    def done(self, step: int, terms: dict[str, Tensor], ids: list[str]) -> None:
        """A step has been made."""
        self.record.add(step, terms, ids)
        self.progress.step = step + 1
        self._unmeasured += self.recipe.batch

    def _due(self, every: int) -> bool:
        step = self.progress.step
        return step > 0 and (step % every == 0 or step == self.recipe.steps)

    @property
    def _alone_on_cpu(self) -> bool:
        """Where looking at a value costs nothing."""
        return distributed.world() == 1 and self.device.type == "cpu"

    # -- log -----------------------------------------------------------------------------------------------------

    def lap(self) -> tuple[float, float]:
        waited = self.waited()
        found = self.clock.lap(self._unmeasured, waited - self._waited)
        self._unmeasured, self._waited = 0, waited
        return found

    def check_finite(self) -> Tensor:
        """The joined terms of the recorded steps; a step whose loss is not finite ends the run.   steps terms"""
        values = self.record.joined()
        bad = first_bad(values, self.record.steps)
        if bad is None:
            return values
        row = values[self.record.steps.index(bad)].tolist()
        terms = ", ".join(f"{name} {value:g}" for name, value in zip(self.record.names, row, strict=True))
        ids = gathered(self.record.ids_of(bad))
        whose = f"; its images were {', '.join(ids)}" if ids else ""
        raise TrainingError(f"train: the loss is not finite at step {bad + 1} ({terms}){whose}; {self._diverged()}")

    def check_weights(self) -> None:
        """The loss of a step says nothing about the update that followed it."""
        finite = [torch.isfinite(each).all() for each in self.tensors() if each.is_floating_point()]
        if not bool(torch.stack([one.to(self.device) for one in finite]).all()):
            raise TrainingError(
                f"train: the weights are not finite after step {self.progress.step}; {self._diverged()}"
            )

    def _diverged(self) -> str:
        return f"{self.last_written()}; {self.cures()}"

    def last_written(self) -> str:
        """Where the same settings would end the same way again, so that --resume is no cure."""
        if self.saved is None:
            return "no checkpoint had been written yet"
        return f"the last good checkpoint is {self.folder.path / checkpoint.LAST}, of step {self.saved}"

    def log(self) -> None:
        values = self.record.joined().double().mean(0).tolist()
        terms = dict(zip(self.record.names, values, strict=True))
        self.record.clear()
        step = self.progress.step
        row = self.line(terms)
        self.progress.loss = row["loss"]
        images_per_s, data_wait = self.lap()
        if debugging() and not distributed.same_everywhere(torch.get_rng_state().to(self.device)):
            raise TrainingError(f"train: the processes' generators differ at step {step}, so joined draws do not join")
        if not self.first:
            return
        self.write(row)
        timing = {"images_per_s": round(images_per_s, 2), "data_wait": round(data_wait, 4)}
        self.folder.log_timing({"step": step, **timing})
        left = (self.recipe.steps - step) * self.recipe.batch
        remaining = left / self.clock.images_per_s if self.clock.images_per_s else 0.0
        self.listen(Logged(step, row["loss"], row["lr"], images_per_s, data_wait, remaining, self.words(row)))

    def write(self, row: dict[str, Any]) -> None:
        self.folder.log(row)
        if self.board is not None:
            self.board.add(row)

    # -- what is kept --------------------------------------------------------------------------------------------

    def save(self) -> None:
        """A checkpoint of a state that is known to be finite, and what belongs to it."""
        self.check_finite()
        self.check_weights()
        if self.light and self.progress.step == self.recipe.steps:
            if self.first:
                self.keep()
            self.fabric.barrier()
            return
        state = {
            "recipe": digest(self.recipe),
            "data": self.data_digest(),
            "progress": self.progress.state(),
            "record": self.record.state(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "random": random_states(self.device),
            "clock": self.clock.state(self.device, self._place),
            **self.state(),
        }
        if self.first:
            path = checkpoint.save(self.folder.path, {**state, "metrics": self.folder.sync_log()})
            self.saved = self.progress.step
            self.keep()  # after the checkpoint: if a kill comes between them, resuming mends it
            self.listen(Saved(self.progress.step, path))
        self.saved = self.progress.step
        self.fabric.barrier()

    def conclude(self, values: dict[str, Any]) -> None:
        """The run is finished, and this is what it found."""
        if self.first:
            self.folder.write_result(values)
            if self.light:
                self.folder.drop_checkpoints()

    def restore(self) -> bool:
        """Go back to the last checkpoint; False where there is none, and the run begins at its beginning."""
        found = checkpoint.load(self.folder.path)
        if found is None:
            if self.first:
                self.folder.cut_log(0)
            return False
        if self.first:
            for note in found.notes:
                self.listen(Note(f"{note}; going on from {found.path.name}"))
        state = found.state
        if state["recipe"] != digest(self.recipe):
            raise TrainingError(f"train: {found.path} was written by a run of another recipe; name another folder")
        if state["data"] != self.data_digest():
            raise CheckpointError(f"train: {found.path} was written with other data: {self.other_data()}")
        self.progress.load(state["progress"])
        self.record.load(state["record"])
        self.load(state)
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        set_random_state(state["random"], self.device)
        self.clock.load(state.get("clock", {}), self._place)  # older checkpoints have none
        self.saved = self.progress.step
        if self.first:
            self.folder.cut_log(state["metrics"])
            self.keep()
        return True

    @property
    def _place(self) -> str:
        """Where times and memory can be added to those of an earlier part of the run."""
        return f"{distributed.world()} x {hardware_name(self.device.type)}"

    def other_data(self) -> str:
        return "its images or classes are not those it was trained on; give the same --data, or begin a new run"

    # -- ends ----------------------------------------------------------------------------------------------------

    def _asked_to_stop(self) -> bool:
        if distributed.world() == 1:
            return bool(self.stop)
        if not self._due(self.recipe.log_every):  # asking all others costs a round, so not at every step
            return False
        return bool(distributed.total(torch.tensor(int(bool(self.stop)), device=self.device)))

    def interrupt(self) -> None:
        if self.progress.step != self.saved or self.progress.step == 0:
            self.light = False  # somebody will go on from here
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.lap()
            self.save()
        raise Interrupted(f"stopped at step {self.progress.step} of {self.recipe.steps}; {self._last_good()}")

    def _stopped(self, trouble: Exception) -> str:
        """What to say when files fail; alone, the state of the last whole step is saved first if that can be done."""
        what = str(trouble)
        if isinstance(trouble, OSError) and trouble.errno in FULL:  # a write that fails does not say where
            what = f"the disk of {self.folder.path} takes no more ({trouble.strerror}); make room there"
        said = f"train: stopped at step {self.progress.step} of {self.recipe.steps}: {what}"
        if isinstance(trouble, DataError) and distributed.world() == 1 and self.progress.step != self.saved:
            with suppress(OSError, TrainingError):
                self.light = False
                self.save()
        return f"{said}; {self._last_good()}"

    def _last_good(self) -> str:
        if self.saved is None:
            return "no checkpoint had been written yet"
        where = self.folder.path / checkpoint.LAST
        return f"the last checkpoint is {where}, of step {self.saved}: go on with --resume"


# ----------------------------------------------------------------------------------------------------------------------
# A loop over labelled data, whatever the task: accumulated parts, the schedule, validation, the best weights.


SupervisedRecipe = TypeVar("SupervisedRecipe", bound=SupervisedTraining)


class Equipment(NamedTuple):
    """What a loop works with, the same for every task."""

    fabric: Fabric
    folder: RunFolder
    assembly: Assembly
    stop: StopRequest
    listen: Listener


class Supervised(Run[SupervisedRecipe, ScoredProgress]):
    """A network that is scored on the validation split as it goes. Of its own a task's loop has the losses."""

    USUAL_CURES = "a lower optim.lr, more optim.warmup, optim.clip=10 or precision=32 are the usual cures"

    def __init__(self, task: Task[SupervisedRecipe], recipe: SupervisedRecipe, data: Any, equipment: Equipment) -> None:
        fabric, folder, assembly, stop, listen = equipment
        super().__init__(recipe, fabric, folder, stop, listen, ScoredProgress())
        self.task, self.data = task, data
        self.net, self.model, self.optimizer, self.wrapped_optimizer = assembly
        self.info = task.info(recipe, data)
        self.batches = task.batches(recipe, data, fabric.device)

    # -- what each task says for itself --------------------------------------------------------------------------

    @abstractmethod
    def losses(self, parts: Sequence[Any]) -> Callable[[int], dict[str, Tensor]]:
        """The terms of each part by its number; their sums over the parts are those of the whole batch."""

    def feed(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[Any]]]:
        """Steps with the accumulated parts of their batches, as a generator that can be closed."""
        return self.batches.run(start, stop)

    def before_step(self, step: int, parts: Sequence[Any]) -> None:
        """A look at the weights and the batch of a step that is about to be made."""

    def findings(self) -> dict[str, Any]:
        """What the result says besides, at the end."""
        return {}

    # -- the run -------------------------------------------------------------------------------------------------

    def steps(self) -> None:
        if self._due(self.recipe.eval_every) and self.progress.evaluated < self.progress.step:
            self.evaluate()  # the interruption came before it, or in its midst
            self.save()
        self.clock.start()
        feed: Any = self.feed(self.progress.step, self.recipe.steps)
        with closing(feed):  # its threads end with the loop, however that ends
            for step, parts in feed:
                self.before_step(step, parts)
                self.train_step(step, parts)
                self.after_step()

    def milestones(self) -> None:
        if self._due(self.recipe.eval_every):
            self.lap()
            self.evaluate()
            self.save()
            self.clock.start()
        elif self._due(self.recipe.checkpoint_every):
            self.lap()
            self.save()
            self.clock.start()

    def train_step(self, step: int, parts: Sequence[Any]) -> None:
        """One update from the accumulated parts of the batch."""
        set_rate(self.optimizer, learning_rate(self.recipe.optim, step, self.recipe.steps))
        self.optimizer.zero_grad(set_to_none=True)
        seen: dict[str, Tensor] = {}
        losses = self.losses(parts)
        for i in range(len(parts)):
            more = i + 1 < len(parts) and distributed.world() > 1
            with self.fabric.no_backward_sync(self.model) if more else nullcontext():
                terms = losses(i)
                self.fabric.backward(torch.stack(list(terms.values())).sum())
            for name, value in terms.items():
                seen[name] = seen[name] + value.detach() if name in seen else value.detach()
        if self.recipe.optim.clip is not None:
            # a norm that is not finite is told of by the loss, with the images that it came from
            self.fabric.clip_gradients(
                self.model, self.wrapped_optimizer, max_norm=self.recipe.optim.clip, error_if_nonfinite=False
            )
        self.wrapped_optimizer.step()
        self.done(step, seen, [name for part in parts for name in getattr(part, "ids", ())])

    def laid(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.recipe.channels_last else images

    def line(self, terms: dict[str, float]) -> dict[str, Any]:
        step = self.progress.step
        rate = learning_rate(self.recipe.optim, step - 1, self.recipe.steps)
        return {"step": step, "loss": sum(terms.values()), "terms": terms, "lr": rate}

    def waited(self) -> float:
        return float(self.batches.waited)

    # -- scores --------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Score the network as it is on the validation split, in float32."""
        self.check_weights()  # a network of NaN still answers, and might even be the best so far
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            scores = self.task.evaluate(
                self.net,
                self.data.val,
                self.info,
                device=self.device,
                batch=self.recipe.batch,
                workers=self.recipe.data.workers,
                channels_last=self.recipe.channels_last,
                progress=self._between_images,
            )
        now, score = self.progress, self.task.kind.score
        now.evaluated, now.scores = now.step, asdict(scores)
        value = now.scores[score.name]
        best = self.recipe.keep == "last" or now.best is None or score.better(value, now.best)
        if best:
            now.best_step, now.best = now.step, value
        if self.first:
            self.write({"step": now.step, **now.scores})
            self.listen(Evaluated(now.step, tuple(self.task.kind.told(now.scores)), best))

    def _between_images(self, done: int, total: int) -> None:
        # alone, an interrupt need not wait for the end; together, all would have to hear of it at the same image
        if self.stop and distributed.world() == 1 and done < total:
            self.interrupt()

    # -- what is kept --------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """The best weights where these are they."""
        now = self.progress
        if now.evaluated == now.step == now.best_step:
            extra = {**self.info.extra, "step": now.step, self.task.kind.score.name: now.best}
            info = replace(self.info, extra=extra)
            self.task.save(self.folder.path / BEST, self.net, info, durable=not self.light)

    def data_digest(self) -> str:
        return str(self.data.digest())

    def state(self) -> dict[str, Any]:
        return {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def tensors(self) -> list[Tensor]:
        states = self.optimizer.state.values()
        momenta = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return [*self.net.state_dict().values(), *momenta]

    def cures(self) -> str:
        return f"begin a new run: {self.USUAL_CURES}"
