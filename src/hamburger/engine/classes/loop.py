"""The training loop of a classifier: one label an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hamburger.data.generation.feed import Real
from hamburger.engine.supervised import Supervised
from hamburger.recipes.class_base import ClassRecipe


class ClassLoop(Supervised[ClassRecipe]):
    def feed(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[Real]]]:
        batches: Any = self.batches.run(start, stop)
        with closing(batches):
            yield from enumerate(batches, start=start)

    def losses(self, parts: Sequence[Real]) -> Callable[[int], dict[str, Tensor]]:
        return lambda i: {"cross_entropy": self._cross_entropy(parts[i]) / len(parts)}

    def _cross_entropy(self, part: Real) -> Tensor:
        return F.cross_entropy(self.model(self.laid(part.images)).float(), part.labels)
