"""What training with labels shares, whatever the labels are: one optimiser, terms of a loss, scores as it goes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.engine.assemble import Assembly
from hamburger.engine.events import Listener
from hamburger.engine.folder import RunFolder
from hamburger.engine.interrupt import StopRequest
from hamburger.engine.optim import set_rate
from hamburger.engine.run import Run
from hamburger.engine.schedule import learning_rate
from hamburger.engine.state import Scored
from hamburger.recipes.base import Recipe
from hamburger.recipes.class_base import ClassRecipe

if TYPE_CHECKING:
    from lightning.fabric import Fabric

R = TypeVar("R", bound=Recipe | ClassRecipe)
P = TypeVar("P", bound=Scored)


class Supervised(Run[R, P]):
    """A network that is scored on the validation split as it goes."""

    def __init__(
        self,
        recipe: R,
        fabric: Fabric,
        folder: RunFolder,
        assembly: Assembly,
        stop: StopRequest,
        listen: Listener,
        progress: P,
    ) -> None:
        super().__init__(recipe, fabric, folder, stop, listen, progress)
        self.net, self.model, self.optimizer, self.wrapped_optimizer = assembly

    # -- what each task says for itself --------------------------------------------------------------------------

    @abstractmethod
    def feed(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[Any]]]:
        """Steps with the accumulated parts of their batches, as a generator that can be closed."""

    @abstractmethod
    def losses(self, parts: Sequence[Any]) -> Callable[[int], dict[str, Tensor]]:
        """The terms of each part by its number; their sums over the parts are those of the whole batch."""

    @abstractmethod
    def evaluate(self) -> None:
        """Score the network as it is."""

    def before_step(self, step: int, parts: Sequence[Any]) -> None:
        """A look at the weights and the batch of a step that is about to be made."""

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
        self.wrapped_optimizer.step()
        self.done(step, seen, [name for part in parts for name in getattr(part, "ids", ())])

    def laid(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.recipe.channels_last else images

    def line(self, terms: dict[str, float]) -> dict[str, Any]:
        step = self.progress.step
        rate = learning_rate(self.recipe.optim, step - 1, self.recipe.steps)
        return {"step": step, "loss": sum(terms.values()), "terms": terms, "lr": rate}

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
