"""A recipe by its name, or from a file."""

from __future__ import annotations

from pathlib import Path

from hamburger.errors import InputError
from hamburger.recipes import segmentation  # noqa: F401  (registers)
from hamburger.recipes.base import Recipe, recipes
from hamburger.recipes.codec import from_json


def find_recipe(name: str) -> Recipe:
    """`voc-ablation`, or `some/run/recipe.json`."""
    if not name.endswith(".json"):
        return recipes.create(name)
    path = Path(name)
    if not path.is_file():
        raise InputError(f"train: there is no recipe file {path}; name one, or a recipe of `ham list recipes`")
    return from_json(path.read_text())
