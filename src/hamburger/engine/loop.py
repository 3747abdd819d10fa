"""The training loop: steps, log, evaluation, checkpoints, and an orderly end when one of them fails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.checks import debugging
from hamburger.engine import checkpoint
from hamburger.engine.assemble import Assembly, Sets
from hamburger.engine.board import Board
from hamburger.engine.clock import Clock
from hamburger.engine.evaluate import evaluate
from hamburger.engine.events import Evaluated, Listener, Logged, Note, Saved
from hamburger.engine.folder import BEST, RunFolder
from hamburger.engine.interrupt import StopRequest
from hamburger.engine.joined import Shares, gathered, lost_peer
from hamburger.engine.optim import set_rate
from hamburger.engine.record import Record, first_bad
from hamburger.engine.schedule import learning_rate
from hamburger.engine.state import Progress, random_states, set_random_state
from hamburger.errors import CheckpointError, DataError, Interrupted, TrainingError
from hamburger.recipes.base import Recipe
from hamburger.recipes.codec import digest

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from hamburger.data.batches import Batch, Batches
    from hamburger.models.weights import Info


class Loop:
    """One run in one process. Everything that all processes must do together is done by all, in the same order."""

    def __init__(
        self,
        recipe: Recipe,
        fabric: Fabric,
        folder: RunFolder,
        sets: Sets,
        assembly: Assembly,
        batches: Batches,
        info: Info,
        stop: StopRequest,
        listen: Listener,
    ) -> None:
        self.recipe, self.fabric, self.folder, self.sets = recipe, fabric, folder, sets
        self.net, self.model, self.optimizer, self.wrapped_optimizer = assembly
        self.batches, self.info, self.stop, self.listen = batches, info, stop, listen
        self.device = fabric.device
        self.progress = Progress()
        self.record = Record(recipe.log_every, self.device)
        self.clock = Clock()
        self.first = distributed.rank() == 0
        self.board: Board | None = None
        self.saved: int | None = None  # the step of the last good checkpoint
        self._unmeasured = 0  # images since the clock's last lap
        self._waited = 0.0  # of the feed, at the clock's last lap

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """From where the progress stands to the last step."""
        recipe = self.recipe
        if recipe.tensorboard and self.first:
            self.board = Board(self.folder.path / "tensorboard", self.progress.step)
        try:
            self._run()
        except (DataError, OSError) as trouble:
            raise TrainingError(self._stopped(trouble)) from trouble
        except RuntimeError as trouble:
            if distributed.world() == 1 or not lost_peer(trouble):
                raise
            said = f"train: another process ended at step {self.progress.step}, and this one cannot go on alone"
            raise TrainingError(f"{said}; {self._last_good()}") from trouble
        finally:
            if self.board is not None:
                self.board.close()

    def _run(self) -> None:
        if self._due(self.recipe.eval_every) and self.progress.evaluated < self.progress.step:
            self.evaluate()  # the interruption came before it, or in its midst
            self.save()
        self.clock.start()
        feed: Any = self.batches.run(self.progress.step, self.recipe.steps)
        with closing(feed):  # its threads end with the loop, however that ends
            for step, parts in feed:
                self.train_step(step, parts)
                self.after_step()

    def after_step(self) -> None:
        every = self.recipe
        if self._due(every.log_every) or self._alone_on_cpu:
            self.check_finite()
        if self._due(every.log_every):
            self.log()
        if self._due(every.eval_every):
            self.lap()
            self.evaluate()
            self.save()
            self.clock.start()
        elif self._due(every.checkpoint_every):
            self.lap()
            self.save()
            self.clock.start()
        if self._asked_to_stop():
            self.interrupt()

    def _due(self, every: int) -> bool:
        step = self.progress.step
        return step > 0 and (step % every == 0 or step == self.recipe.steps)

    @property
    def _alone_on_cpu(self) -> bool:
        """Where looking at a value costs nothing."""
        return distributed.world() == 1 and self.device.type == "cpu"

    # -- one step ------------------------------------------------------------------------------------------------

    def train_step(self, step: int, parts: Sequence[Batch]) -> None:
        """One update from the accumulated parts of the batch."""
        set_rate(self.optimizer, learning_rate(self.recipe.optim, step, self.recipe.steps))
        self.optimizer.zero_grad(set_to_none=True)
        seen: dict[str, Tensor] = {}
        shares = Shares(parts, self.net.head)
        for i, part in enumerate(parts):
            more = i + 1 < len(parts) and distributed.world() > 1
            with self.fabric.no_backward_sync(self.model) if more else nullcontext():
                terms = shares.weighted(self._forward(part), i)
                self.fabric.backward(torch.stack(list(terms.values())).sum())
            for name, value in terms.items():
                seen[name] = seen[name] + value.detach() if name in seen else value.detach()
        self.wrapped_optimizer.step()
        self.record.add(step, seen, [name for part in parts for name in part.ids])
        self.progress.step = step + 1
        self._unmeasured += self.recipe.batch

    def _forward(self, part: Batch) -> dict[str, Tensor]:
        images = part.images
        if self.recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        terms: dict[str, Tensor] = self.model(images, part.labels)
        return terms

    # -- log and scores ------------------------------------------------------------------------------------------

    def lap(self) -> tuple[float, float]:
        waited = self.batches.waited
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
        raise TrainingError(
            f"train: the loss is not finite at step {bad + 1} ({terms}); its images were {', '.join(ids)}; "
            f"{self._diverged()}"
        )

    def check_weights(self) -> None:
        """The loss of a step says nothing about the update that followed it."""
        held = [*self.net.state_dict().values(), *self._momenta()]
        finite = [torch.isfinite(each).all() for each in held if each.is_floating_point()]
        if not bool(torch.stack([one.to(self.device) for one in finite]).all()):
            raise TrainingError(
                f"train: the weights are not finite after step {self.progress.step}; {self._diverged()}"
            )

    def _momenta(self) -> list[Tensor]:
        states = self.optimizer.state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    def _diverged(self) -> str:
        """The same settings would end the same way again, so --resume is no cure."""
        where = "no checkpoint had been written yet"
        if self.saved is not None:
            where = f"the last good checkpoint is {self.folder.path / checkpoint.LAST}, of step {self.saved}"
        begin = f", from the best weights so far with --set start={self.folder.path}" if self._has_best() else ""
        return (
            f"{where}; begin a new run{begin}: a lower optim.lr, more optim.warmup or precision=32 are the usual cures"
        )

    def _has_best(self) -> bool:
        return (self.folder.path / BEST).exists()

    def log(self) -> None:
        values = self.record.joined().double().mean(0).tolist()
        terms = dict(zip(self.record.names, values, strict=True))
        self.record.clear()
        step = self.progress.step
        rate = learning_rate(self.recipe.optim, step - 1, self.recipe.steps)
        self.progress.loss = sum(terms.values())
        images_per_s, data_wait = self.lap()
        if debugging() and not distributed.same_everywhere(torch.get_rng_state().to(self.device)):
            raise TrainingError(f"train: the processes' generators differ at step {step}, so joined draws do not join")
        if not self.first:
            return
        row = {"step": step, "loss": self.progress.loss, "terms": terms, "lr": rate}
        self._write(row)
        timing = {"images_per_s": round(images_per_s, 2), "data_wait": round(data_wait, 4)}
        self.folder.log_timing({"step": step, **timing})
        left = (self.recipe.steps - step) * self.recipe.batch
        remaining = left / self.clock.images_per_s if self.clock.images_per_s else 0.0
        self.listen(Logged(step, self.progress.loss, rate, images_per_s, data_wait, remaining))

    def evaluate(self) -> None:
        """Score the network as it is, single scale, in float32."""
        self.check_weights()  # a network of NaN still answers, and might even be the best so far
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            scores = evaluate(
                self.net,
                self.sets.val,
                device=self.device,
                mean=self.info.mean,
                std=self.info.std,
                channels_last=self.recipe.channels_last,
                workers=self.recipe.data.workers,
                progress=self._between_images,
            )
        now = self.progress
        now.evaluated, now.scores = now.step, asdict(scores)
        best = self.recipe.keep == "last" or now.best_miou is None or scores.miou > now.best_miou
        if best:
            now.best_step, now.best_miou = now.step, scores.miou
        if self.first:
            self._write({"step": now.step, **now.scores})
            self.listen(Evaluated(now.step, scores.miou, scores.pixel_accuracy, best))

    def _between_images(self, done: int, total: int) -> None:
        # alone, an interrupt need not wait for the end; together, all would have to hear of it at the same image
        if self.stop and distributed.world() == 1 and done < total:
            self.interrupt()

    def _write(self, row: dict[str, Any]) -> None:
        self.folder.log(row)
        if self.board is not None:
            self.board.add(row)

    # -- what is kept --------------------------------------------------------------------------------------------

    def save(self) -> None:
        """A checkpoint of a state that is known to be finite, and the best weights where these are they."""
        self.check_finite()
        self.check_weights()
        state = {
            "recipe": digest(self.recipe),
            "data": self.sets.digest(),
            "progress": self.progress.state(),
            "record": self.record.state(),
            "model": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "random": random_states(self.device),
        }
        if self.first:
            path = checkpoint.save(self.folder.path, {**state, "metrics": self.folder.sync_log()})
            self.saved = self.progress.step
            self._save_best()
            self.listen(Saved(self.progress.step, path))
        self.saved = self.progress.step
        self.fabric.barrier()

    def _save_best(self) -> None:
        """After the checkpoint, which knows that this is the best: if a kill comes between them, resuming mends it."""
        from hamburger.models.weights import save_weights

        now = self.progress
        if now.evaluated == now.step == now.best_step:
            extra = {**self.info.extra, "step": now.step, "miou": now.best_miou}
            save_weights(self.folder.path / BEST, self.net, replace(self.info, extra=extra))

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
        if state["data"] != self.sets.digest():
            raise CheckpointError(
                f"train: {found.path} was written with other data: the images or the classes of a split are not those "
                f"it was trained on; give the same --data, or begin a new run with --set start={self.folder.path}"
            )
        self.progress.load(state["progress"])
        self.record.load(state["record"])
        self.net.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        set_random_state(state["random"], self.device)
        self.saved = self.progress.step
        if self.first:
            self.folder.cut_log(state["metrics"])
            self._save_best()
        return True

    # -- ends ----------------------------------------------------------------------------------------------------

    def _asked_to_stop(self) -> bool:
        if distributed.world() == 1:
            return bool(self.stop)
        if not self._due(self.recipe.log_every):  # asking all others costs a round, so not at every step
            return False
        return bool(distributed.total(torch.tensor(int(bool(self.stop)), device=self.device)))

    def interrupt(self) -> None:
        if self.progress.step != self.saved or self.progress.step == 0:
            self.save()
        raise Interrupted(f"stopped at step {self.progress.step} of {self.recipe.steps}; {self._last_good()}")

    def _stopped(self, trouble: Exception) -> str:
        """What to say when files fail; alone, the state of the last whole step is saved first if that can be done."""
        said = f"train: stopped at step {self.progress.step} of {self.recipe.steps}: {trouble}"
        if isinstance(trouble, DataError) and distributed.world() == 1 and self.progress.step != self.saved:
            with suppress(OSError, TrainingError):
                self.save()
        return f"{said}; {self._last_good()}"

    def _last_good(self) -> str:
        if self.saved is None:
            return "no checkpoint had been written yet"
        where = self.folder.path / checkpoint.LAST
        return f"the last checkpoint is {where}, of step {self.saved}: go on with --resume"
