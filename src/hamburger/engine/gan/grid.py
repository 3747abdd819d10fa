"""Cells of a grid that are GANs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hamburger.engine.grid import Cell
from hamburger.recipes.find import find_gan_recipe
from hamburger.recipes.gan_base import GanRecipe
from hamburger.recipes.gan_check import check_gan_recipe
from hamburger.recipes.overrides import apply


@dataclass(frozen=True)
class GanCell(Cell):
    verb: ClassVar[tuple[str, ...]] = ("gan", "train")

    def resolved(self) -> GanRecipe:
        recipe = replace(apply(find_gan_recipe(self.recipe), self.overrides), seed=self.seed)
        check_gan_recipe(recipe, processes=1)
        return recipe
