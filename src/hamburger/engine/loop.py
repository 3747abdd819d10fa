"""The training loop of segmentation: what the steps of a segmentation network have of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from hamburger.engine.folder import BEST
from hamburger.engine.joined import Shares
from hamburger.engine.supervised import Supervised
from hamburger.recipes.base import Recipe

if TYPE_CHECKING:
    from hamburger.data.batches import Batch


class Loop(Supervised[Recipe]):
    def losses(self, parts: Sequence[Batch]) -> Callable[[int], dict[str, Tensor]]:
        shares = Shares(parts, self.net.head)
        return lambda i: shares.weighted(self._forward(parts[i]), i)

    def _forward(self, part: Batch) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.model(self.laid(part.images), part.labels)
        return terms

    def other_data(self) -> str:
        return (
            "the images or the classes of a split are not those it was trained on; give the same --data, or begin a "
            f"new run with --set start={self.folder.path}"
        )

    def cures(self) -> str:
        has_best = (self.folder.path / BEST).exists()
        begin = f", from the best weights so far with --set start={self.folder.path}" if has_best else ""
        return f"begin a new run{begin}: {self.USUAL_CURES}"
