"""The training loop of a stereo network: smooth L1 over the known pixels of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.data.stereo.batches import StereoBatch
from hamburger.engine.supervised import Supervised
from hamburger.losses.disparity import known
from hamburger.recipes.stereo_base import StereoRecipe


class StereoLoop(Supervised[StereoRecipe]):
    def losses(self, parts: Sequence[StereoBatch]) -> Callable[[int], dict[str, Tensor]]:
        shares = self._shares(parts)
        return lambda i: {name: value * shares[i] for name, value in self._forward(parts[i]).items()}

    def _forward(self, part: StereoBatch) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.model(part.left, part.right, part.disparity)
        return terms

    def _shares(self, parts: Sequence[StereoBatch]) -> Sequence[Tensor | float]:
        """Of each part in the mean over the known pixels of the whole batch."""
        if len(parts) == 1:
            return [1.0]
        most = self.recipe.model.max_disparity
        counts = distributed.total(torch.stack([known(part.disparity, most).sum() for part in parts])).float()
        return list(counts / counts.sum().clamp_min(1))
