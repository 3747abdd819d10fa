"""Cells of a grid that are GANs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hamburger.engine.folder import RESULT, RunFolder
from hamburger.engine.grid import Cell
from hamburger.errors import OptionError
from hamburger.recipes.codec import digest
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

    def row(self, result: dict[str, Any]) -> dict[str, Any]:
        return {**super().row(result), "recipe_hash": digest(self.resolved())}


def check_data(grid: Sequence[Cell], out: Path, digest: str) -> None:
    """Before any work: what is finished in the folder was trained on the images of that digest.

    What is not finished says so itself when it resumes.
    """
    for cell in grid:
        found = RunFolder(out / cell.name).result()
        if found is not None and found.get("data_sha256") != digest:
            seen = str(found.get("data_sha256", "unknown"))[:12]
            raise OptionError(
                f"gan grid: the run in {out / cell.name} was trained on other images (sha256 {seen}) than --data holds "
                f"({digest[:12]}); give the same --data, or name another folder with --out. Where they are the same, "
                f"remove its {RESULT}: it is written again from the checkpoint"
            )
