"""Stereo pairs, opened for a training."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from hamburger.data.stereo import StereoSet, create_stereo_set
from hamburger.data.stereo.checks import check_stereo
from hamburger.data.stereo.files import StereoFileSet
from hamburger.engine.assemble import check_each
from hamburger.recipes.stereo_base import StereoRecipe


class StereoSplits(NamedTuple):
    train: StereoSet
    val: StereoSet

    @classmethod
    def of(cls, recipe: StereoRecipe, root: Path | None) -> StereoSplits:
        splits = (recipe.data.train_split, recipe.data.val_split)
        return cls(*(create_stereo_set(recipe.data.name, split, root, **recipe.data.options) for split in splits))

    def check(self) -> float:
        """The largest disparity to train on, 0 where pairs are rendered: those have nothing wrong either."""
        train, _ = check_each(self, lambda each: check_stereo(each) if isinstance(each, StereoFileSet) else None)
        return 0.0 if train is None or not isinstance(self.train, StereoFileSet) else train.largest / self.train.shrink

    def digest(self) -> str:
        """Of what decides which pairs a step sees."""
        said = [[each.name, each.split, list(each.ids)] for each in self]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()
