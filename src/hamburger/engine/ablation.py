"""Cells of a named grid: trainings, and evaluations that use the weights of a training in another way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamburger.engine.folder import RESULT
from hamburger.engine.grid import Cell
from hamburger.errors import OptionError
from hamburger.recipes.ablations import chosen
from hamburger.recipes.base import Recipe
from hamburger.recipes.codec import digest
from hamburger.recipes.find import find_recipe
from hamburger.recipes.overrides import apply

# evaluations speak of the weights that the row of their training speaks of: those of the last step
KEEP = "keep=last"


@dataclass(frozen=True)
class AblationCell(Cell):
    ablation: str = ""
    settings: tuple[str, ...] = ()  # what the person set for all cells
    weights: str | None = None  # the variant whose weights are evaluated; None for a training
    evaluation: tuple[str, ...] = ()  # words for `ham eval`
    trained: str = ""  # the folder of the training, without its seed: of several grids, where they have it in common

    @property
    def name(self) -> str:
        return f"{self.variant if self.weights else self.trained}-seed{self.seed}"

    @property
    def needs(self) -> str | None:
        return None if self.weights is None else f"{self.trained}-seed{self.seed}"

    def command(self, out: Path, data: Path | None) -> list[str]:
        if self.needs is None:
            return [*super().command(out, data), "--light"]
        recipe = self.resolved()
        assert isinstance(recipe, Recipe)
        words = [sys.executable, "-m", "hamburger", "eval", str(out / self.needs), *self.evaluation]
        words += ["--split", recipe.data.val_split, "--json", str(out / self.name / RESULT)]
        return words if data is None else [*words, "--data", str(data)]

    def row(self, result: dict[str, Any]) -> dict[str, Any]:
        """One line of `results/ablation_*.jsonl`. Folders are this machine's own, so none is named."""
        recipe = self.resolved()
        own = {"ablation": self.ablation, "cell": self.variant, "seed": self.seed, "recipe": self.recipe}
        own |= {"recipe_hash": digest(recipe), "weights": self.weights, "loss": None}
        own |= {"settings": list(self.settings), "overrides": list(self.overrides), "steps": recipe.steps}
        return own | {key: value for key, value in result.items() if key not in ("recipe", "weights", "seed")}


def ablation_cells(
    name: str, recipe: str, *, seeds: Sequence[int], settings: Sequence[str] = (), only: Sequence[str] = ()
) -> list[AblationCell]:
    """Every cell with every seed, seeds outermost, so that what is cut short still compares all cells."""
    for option, values in (("seed", list(seeds)), ("cell", list(only))):
        if len(set(values)) != len(values) or (option == "seed" and not values):
            raise OptionError(f"ablate: give each {option} once, and at least one seed, got {values}")
    grid = chosen(name, apply(find_recipe(recipe), settings), only)
    made = []
    for seed in seeds:
        for variant, found in grid.items():
            training = variant if found.weights is None else found.weights
            made.append(
                AblationCell(
                    variant,
                    recipe,
                    seed,
                    (KEEP, *settings, *grid[training].overrides),
                    ablation=name,
                    settings=tuple(settings),
                    weights=found.weights,
                    evaluation=found.evaluation,
                    trained=grid[training].shared or training,
                )
            )
    return made
