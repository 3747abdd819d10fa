"""The training loop of segmentation: steps, evaluation, and the best weights so far."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.engine.assemble import Assembly, Sets
from hamburger.engine.evaluate import evaluate
from hamburger.engine.events import Evaluated, Listener
from hamburger.engine.folder import BEST, RunFolder
from hamburger.engine.interrupt import StopRequest
from hamburger.engine.joined import Shares
from hamburger.engine.optim import set_rate
from hamburger.engine.run import Run
from hamburger.engine.schedule import learning_rate
from hamburger.engine.state import Progress
from hamburger.recipes.base import Recipe

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from hamburger.data.batches import Batch, Batches
    from hamburger.models.weights import Info


class Loop(Run[Recipe, Progress]):
    """A segmentation network, scored on the validation split as it goes."""

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
        super().__init__(recipe, fabric, folder, stop, listen, Progress())
        self.net, self.model, self.optimizer, self.wrapped_optimizer = assembly
        self.sets, self.batches, self.info = sets, batches, info

    # -- the run -------------------------------------------------------------------------------------------------

    def steps(self) -> None:
        if self._due(self.recipe.eval_every) and self.progress.evaluated < self.progress.step:
            self.evaluate()  # the interruption came before it, or in its midst
            self.save()
        self.clock.start()
        feed: Any = self.batches.run(self.progress.step, self.recipe.steps)
        with closing(feed):  # its threads end with the loop, however that ends
            for step, parts in feed:
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
        self.done(step, seen, [name for part in parts for name in part.ids])

    def _forward(self, part: Batch) -> dict[str, Tensor]:
        images = part.images
        if self.recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        terms: dict[str, Tensor] = self.model(images, part.labels)
        return terms

    # -- log and scores ------------------------------------------------------------------------------------------

    def line(self, terms: dict[str, float]) -> dict[str, Any]:
        step = self.progress.step
        rate = learning_rate(self.recipe.optim, step - 1, self.recipe.steps)
        return {"step": step, "loss": sum(terms.values()), "terms": terms, "lr": rate}

    def waited(self) -> float:
        return self.batches.waited

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
            self.write({"step": now.step, **now.scores})
            self.listen(Evaluated(now.step, scores.miou, scores.pixel_accuracy, best))

    def _between_images(self, done: int, total: int) -> None:
        # alone, an interrupt need not wait for the end; together, all would have to hear of it at the same image
        if self.stop and distributed.world() == 1 and done < total:
            self.interrupt()

    # -- what is kept --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def tensors(self) -> list[Tensor]:
        states = self.optimizer.state.values()
        momenta = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return [*self.net.state_dict().values(), *momenta]

    def data_digest(self) -> str:
        return self.sets.digest()

    def other_data(self) -> str:
        return (
            "the images or the classes of a split are not those it was trained on; give the same --data, or begin a "
            f"new run with --set start={self.folder.path}"
        )

    def keep(self) -> None:
        """The best weights where these are they."""
        from hamburger.models.weights import save_weights

        now = self.progress
        if now.evaluated == now.step == now.best_step:
            extra = {**self.info.extra, "step": now.step, "miou": now.best_miou}
            save_weights(self.folder.path / BEST, self.net, replace(self.info, extra=extra))

    def cures(self) -> str:
        has_best = (self.folder.path / BEST).exists()
        begin = f", from the best weights so far with --set start={self.folder.path}" if has_best else ""
        return f"begin a new run{begin}: a lower optim.lr, more optim.warmup or precision=32 are the usual cures"
