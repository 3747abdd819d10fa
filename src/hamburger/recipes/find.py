"""A recipe by its name, or from a file."""

from __future__ import annotations

import json
from pathlib import Path

from hamburger.errors import InputError, UnknownNameError, did_you_mean
from hamburger.recipes.base import Recipe, recipes
from hamburger.recipes.class_base import ClassRecipe, class_recipes
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


def find_training(name: str) -> Recipe | ClassRecipe:
    """The recipe of `ham train`, of whichever task it is."""
    if name in class_recipes:
        return class_recipes.create(name)
    if name.endswith(".json") and Path(name).is_file() and _task(Path(name).read_text()) == "classes":
        return read_recipe(Path(name).read_text(), ClassRecipe)
    if not name.endswith(".json") and name not in recipes:
        known = [*recipes.names(), *class_recipes.names()]
        raise UnknownNameError(f"no recipe '{name}'{did_you_mean(name, known)}")
    return find_recipe(name)


def _task(text: str) -> str | None:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return None  # reading it as a recipe says what is wrong
    return found.get("task") if isinstance(found, dict) else None


def find_gan_recipe(name: str) -> GanRecipe:
    """`cifar10`, or `some/run/recipe.json`."""
    if not name.endswith(".json"):
        return gan_recipes.create(name)
    path = Path(name)
    if not path.is_file():
        raise InputError(f"gan train: there is no recipe file {path}; name one, or one of `ham list gan-recipes`")
    return read_recipe(path.read_text(), GanRecipe)
