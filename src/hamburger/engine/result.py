"""What a finished run has to say, in one file."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hamburger.environment import Environment
from hamburger.recipes.base import Recipe
from hamburger.registry import options_of
from hamburger.solvers.backend import VARIABLE

# What two equal runs may differ in.
MEASURED = ("images_per_s", "peak_mb", "data_wait", "seconds", "date")


@dataclass(frozen=True)
class Result:
    """`values` is `result.json`; `miou` is that of the last step, not of the best one."""

    run: Path
    values: dict[str, Any]

    @property
    def miou(self) -> float:
        return float(self.values["miou"])


def summary(
    recipe: Recipe, *, scores: dict[str, Any], best: tuple[int, float], loss: float | None, parameters: int
) -> dict[str, Any]:
    """What the run found, equal to the last bit in equal runs."""
    return {
        "recipe": recipe.name,
        "model": recipe.model.name,
        "backbone": recipe.model.backbone,
        "context": context_of(recipe),
        "seed": recipe.seed,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "precision": recipe.precision,
        "miou": scores["miou"],
        "pixel_accuracy": scores["pixel_accuracy"],
        "per_class": scores["per_class"],
        "protocol": scores["protocol"],
        "best_miou": best[1],
        "best_step": best[0],
        "loss": loss,
        "parameters": parameters,
    }


def context_of(recipe: Recipe) -> str | None:
    """The context's name, None for the baseline; a head that is a whole system is its own context."""
    from hamburger.heads.base import heads

    takes_one = "context" in options_of(heads[recipe.model.name])
    return recipe.model.context if takes_one else recipe.model.name


def surroundings(device: str) -> dict[str, Any]:
    """Hardware, versions and commit, and which program the hams were told to take."""
    return {**asdict(Environment.here(device)), "backend": os.environ.get(VARIABLE, "auto")}
