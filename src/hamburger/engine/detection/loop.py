"""The training loop of a detector: boxes, classes and masks at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from hamburger.data.detection.batches import SceneBatch
from hamburger.engine.supervised import Supervised
from hamburger.recipes.detect_base import DetectionRecipe


class DetectionLoop(Supervised[DetectionRecipe]):
    def losses(self, parts: Sequence[SceneBatch]) -> Callable[[int], dict[str, Tensor]]:
        """Every term is a mean over images or sampled boxes, so that parts of equal size weigh the same."""

        def terms(i: int) -> dict[str, Tensor]:
            found: dict[str, Tensor] = self.model(parts[i].images, parts[i].targets)
            return {name: value / len(parts) for name, value in found.items()}

        return terms
