"""The training loop of a classifier: the same steps as segmentation's, with one label an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.data.generation.feed import Feed, Real
from hamburger.data.generation.load import ImageSet
from hamburger.engine.assemble import Assembly
from hamburger.engine.classes.evaluate import evaluate_classes
from hamburger.engine.events import Judged, Listener
from hamburger.engine.folder import BEST, RunFolder
from hamburger.engine.interrupt import StopRequest
from hamburger.engine.state import Scored
from hamburger.engine.supervised import Supervised
from hamburger.models.classifier import save_classifier
from hamburger.models.info import Info
from hamburger.recipes.class_base import ClassRecipe

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass
class ClassProgress(Scored):
    best_accuracy: float | None = None


class ClassLoop(Supervised[ClassRecipe, ClassProgress]):
    def __init__(
        self,
        recipe: ClassRecipe,
        fabric: Fabric,
        folder: RunFolder,
        assembly: Assembly,
        batches: Feed,
        val: ImageSet,
        stop: StopRequest,
        listen: Listener,
    ) -> None:
        super().__init__(recipe, fabric, folder, assembly, stop, listen, ClassProgress())
        self.batches, self.val = batches, val

    def feed(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[Real]]]:
        batches: Any = self.batches.run(start, stop)
        with closing(batches):
            yield from enumerate(batches, start=start)

    def losses(self, parts: Sequence[Real]) -> Callable[[int], dict[str, Tensor]]:
        return lambda i: {"cross_entropy": self._cross_entropy(parts[i]) / len(parts)}

    def _cross_entropy(self, part: Real) -> Tensor:
        return F.cross_entropy(self.model(self.laid(part.images)).float(), part.labels)

    def waited(self) -> float:
        return self.batches.waited

    def evaluate(self) -> None:
        """The share of the validation images that are named rightly, in float32."""
        self.check_weights()  # a network of NaN still answers
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            scores = evaluate_classes(
                self.net, self.val, device=self.device, batch=self.recipe.batch, channels_last=self.recipe.channels_last
            )
        now = self.progress
        now.evaluated, now.scores = now.step, asdict(scores)
        best = self.recipe.keep == "last" or now.best_accuracy is None or scores.accuracy > now.best_accuracy
        if best:
            now.best_step, now.best_accuracy = now.step, scores.accuracy
        if self.first:
            self.write({"step": now.step, **now.scores})
            self.listen(Judged(now.step, "accuracy", scores.accuracy, best))

    def data_digest(self) -> str:
        return f"{self.batches.set.digest} {self.val.digest}"

    def keep(self) -> None:
        """The best weights where these are they."""
        now = self.progress
        if now.evaluated == now.step == now.best_step:
            data = self.recipe.data
            extra: dict[str, Any] = {"recipe": self.recipe.name, "data": data.name, "data_options": data.options}
            extra |= {"val_split": data.val_split, "size": data.size}
            extra |= {"step": now.step, "accuracy": now.best_accuracy}
            save_classifier(self.folder.path / BEST, self.net, replace(Info(classes=self.val.classes), extra=extra))

    def cures(self) -> str:
        return "begin a new run: a lower optim.lr, more optim.warmup or precision=32 are the usual cures"
