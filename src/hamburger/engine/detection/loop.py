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

    def other_data(self) -> str:
        return (
            "the images, the classes or the annotations (boxes, masks) of a split are not those it was trained on; "
            "give the same --data with its files as they were, or begin a new run"
        )
