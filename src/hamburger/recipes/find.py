"""A recipe by its name, or from a file."""

from __future__ import annotations

from pathlib import Path

from hamburger.errors import InputError
from hamburger.recipes.base import Recipe, recipes
from hamburger.recipes.codec import from_json, read_recipe
from hamburger.recipes.gan_base import GanRecipe, gan_recipes


def find_recipe(name: str) -> Recipe:
    """`voc-ablation`, or `some/run/recipe.json`."""
    if not name.endswith(".json"):
        return recipes.create(name)
    path = Path(name)
    if not path.is_file():
        raise InputError(f"train: there is no recipe file {path}; name one, or a recipe of `ham list recipes`")
    return from_json(path.read_text())


def find_gan_recipe(name: str) -> GanRecipe:
    """`cifar10`, or `some/run/recipe.json`."""
    if not name.endswith(".json"):
        return gan_recipes.create(name)
    path = Path(name)
    if not path.is_file():
        raise InputError(f"gan train: there is no recipe file {path}; name one, or one of `ham list gan-recipes`")
    return read_recipe(path.read_text(), GanRecipe)
