"""Detection sets, opened for a training."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hamburger.data.detection import DetectionSet, create_detection_set
from hamburger.data.detection.checks import check_scenes
from hamburger.engine.assemble import check_alike, check_each, digest_of
from hamburger.recipes.detect_base import DetectionRecipe


class SceneSets(NamedTuple):
    train: DetectionSet
    val: DetectionSet

    @classmethod
    def of(cls, recipe: DetectionRecipe, root: Path | None) -> SceneSets:
        asked = recipe.data
        splits = (asked.train_split, asked.val_split)
        train, val = (create_detection_set(asked.name, split, root, **asked.options) for split in splits)
        check_alike(asked, train.classes, val.classes)
        return cls(train, val)

    def check(self) -> None:
        check_each(self, check_scenes)

    def digest(self) -> str:
        """Annotations count too: one file holds those of all images, and a tool that adds some writes it anew."""
        return " ".join([digest_of(self), *(each.digest for each in self if each.digest)])
