"""A loop over labelled data, whatever the task: accumulated parts, the schedule, validation, the best weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.engine.assemble import Assembly
from hamburger.engine.events import Evaluated, Listener
from hamburger.engine.folder import BEST, RunFolder
from hamburger.engine.interrupt import StopRequest
from hamburger.engine.optim import set_rate
from hamburger.engine.run import Run
from hamburger.engine.schedule import learning_rate
from hamburger.engine.state import Scored
from hamburger.recipes.base import SupervisedTraining

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from hamburger.engine.task import Task

R = TypeVar("R", bound=SupervisedTraining)


class Equipment(NamedTuple):
    """What a loop works with, the same for every task."""

    fabric: Fabric
    folder: RunFolder
    assembly: Assembly
    stop: StopRequest
    listen: Listener


class Supervised(Run[R, Scored]):
    """A network that is scored on the validation split as it goes. Of its own a task's loop has the losses."""

    USUAL_CURES = "a lower optim.lr, more optim.warmup, optim.clip=10 or precision=32 are the usual cures"

    def __init__(self, task: Task[R], recipe: R, data: Any, equipment: Equipment) -> None:
        fabric, folder, assembly, stop, listen = equipment
        super().__init__(recipe, fabric, folder, stop, listen, Scored())
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
