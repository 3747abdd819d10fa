"""Stereo pairs, opened for a training."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from hamburger.data.stereo import StereoSet, create_stereo_set
from hamburger.data.stereo.checks import check_stereo
from hamburger.data.stereo.files import StereoFileSet
from hamburger.errors import DataError
from hamburger.recipes.stereo_base import StereoRecipe


class StereoSplits(NamedTuple):
    train: StereoSet
    val: StereoSet

    @classmethod
    def of(cls, recipe: StereoRecipe, root: Path | None) -> StereoSplits:
        splits = (recipe.data.train_split, recipe.data.val_split)
        return cls(*(create_stereo_set(recipe.data.name, split, root, **recipe.data.options) for split in splits))

    def check(self) -> None:
        """All that is wrong with both, in one error; what is rendered has nothing wrong."""
        found: list[DataError] = []
        for each in self:
            try:
                if isinstance(each, StereoFileSet):
                    check_stereo(each)
            except DataError as wrong:
                found.append(wrong)
        if found:
            raise DataError(
                "\n".join(str(wrong) for wrong in found), [problem for wrong in found for problem in wrong.problems]
            )

    def digest(self) -> str:
        """Of what decides which pairs a step sees."""
        said = [[each.name, each.split, list(each.ids)] for each in self]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()
