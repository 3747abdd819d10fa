"""The training loop of segmentation: steps, evaluation, and the best weights so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.engine.angles import angles
from hamburger.engine.assemble import Assembly, Sets
from hamburger.engine.evaluate import evaluate
from hamburger.engine.events import Evaluated, Listener
from hamburger.engine.folder import ANGLES, BEST, RunFolder
from hamburger.engine.interrupt import StopRequest
from hamburger.engine.joined import Shares
from hamburger.engine.state import Progress
from hamburger.engine.supervised import Supervised
from hamburger.recipes.base import Recipe

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from hamburger.data.batches import Batch, Batches
    from hamburger.models.weights import Info


class Loop(Supervised[Recipe, Progress]):
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
        super().__init__(recipe, fabric, folder, assembly, stop, listen, Progress())
        self.sets, self.batches, self.info = sets, batches, info

    # -- steps ---------------------------------------------------------------------------------------------------

    def feed(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[Batch]]]:
        return self.batches.run(start, stop)

    def losses(self, parts: Sequence[Batch]) -> Callable[[int], dict[str, Tensor]]:
        shares = Shares(parts, self.net.head)
        return lambda i: shares.weighted(self._forward(parts[i]), i)

    def before_step(self, step: int, parts: Sequence[Batch]) -> None:
        """The gradients of this step by several strategies, where the recipe asks for them; of its first part."""
        every = self.recipe.angles_every
        if not every or step % every:
            return
        self.lap()
        first = parts[0]

        def loss() -> Tensor:  # of the network itself: nothing of this is to be joined with other processes
            with self.fabric.autocast():
                return torch.stack(list(self.net(self.laid(first.images), first.labels).values())).sum()

        found = angles(self.net, loss)
        if self.first:
            self.write({"step": step, ANGLES: found})
        self.clock.start()

    def _forward(self, part: Batch) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.model(self.laid(part.images), part.labels)
        return terms

    # -- scores --------------------------------------------------------------------------------------------------

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
            info = replace(self.info, extra=extra)
            save_weights(self.folder.path / BEST, self.net, info, durable=not self.light)

    def cures(self) -> str:
        has_best = (self.folder.path / BEST).exists()
        begin = f", from the best weights so far with --set start={self.folder.path}" if has_best else ""
        return f"begin a new run{begin}: a lower optim.lr, more optim.warmup or precision=32 are the usual cures"
