"""Images with a class each, opened for a training or for an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hamburger.data.generation.load import ImageSet, load_images, open_source
from hamburger.engine.assemble import check_alike
from hamburger.recipes.class_base import ClassRecipe


class Splits(NamedTuple):
    train: ImageSet
    val: ImageSet

    @classmethod
    def of(cls, recipe: ClassRecipe, root: Path | None, *, verify: bool, note: Callable[[str], object]) -> Splits:
        asked = recipe.data
        sources = [
            open_source(asked.name, split, size=asked.size, root=root, **asked.options)
            for split in (asked.train_split, asked.val_split)
        ]
        train, val = (load_images(source, verify=verify, note=note) for source in sources)
        check_alike(asked, train.classes, val.classes)
        return cls(train, val)

    def digest(self) -> str:
        return f"{self.train.digest} {self.val.digest}"
