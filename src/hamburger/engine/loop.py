"""The training loop of segmentation: what the steps of a segmentation network have of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hamburger.engine.angles import angles, check_hams
from hamburger.engine.folder import ANGLES, BEST
from hamburger.engine.joined import Shares
from hamburger.engine.supervised import Equipment, Supervised
from hamburger.recipes.base import Recipe

if TYPE_CHECKING:
    from hamburger.data.batches import Batch
    from hamburger.engine.task import Task


class Loop(Supervised[Recipe]):
    def __init__(self, task: Task[Recipe], recipe: Recipe, data: Any, equipment: Equipment) -> None:
        super().__init__(task, recipe, data, equipment)
        if recipe.angles_every:
            check_hams(self.net)

    def losses(self, parts: Sequence[Batch]) -> Callable[[int], dict[str, Tensor]]:
        shares = Shares(parts, self.net.head)
        return lambda i: shares.weighted(self._forward(parts[i]), i)

    def _forward(self, part: Batch) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.model(self.laid(part.images), part.labels)
        return terms

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

    def findings(self) -> dict[str, Any]:
        return {ANGLES: self.folder.angles()} if self.recipe.angles_every else {}

    def other_data(self) -> str:
        return (
            "the images or the classes of a split are not those it was trained on; give the same --data, or begin a "
            f"new run with --set start={self.folder.path}"
        )

    def cures(self) -> str:
        has_best = (self.folder.path / BEST).exists()
        begin = f", from the best weights so far with --set start={self.folder.path}" if has_best else ""
        return f"begin a new run{begin}: {self.USUAL_CURES}"
