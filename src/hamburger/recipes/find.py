"""A recipe by its name, or from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from hamburger.errors import InputError, UnknownNameError, did_you_mean
from hamburger.recipes.base import Recipe, SupervisedTraining, recipes
from hamburger.recipes.codec import from_json, read_recipe
from hamburger.recipes.gan_base import GanRecipe, gan_recipes
from hamburger.recipes.kinds import kind_named, kinds


def find_recipe(name: str) -> Recipe:
    """`voc-ablation`, or `some/run/recipe.json`."""
    if not name.endswith(".json"):
        return recipes.create(name)
    path = Path(name)
    if not path.is_file():
        raise InputError(f"train: there is no recipe file {path}; name one, or a recipe of `ham list recipes`")
    return from_json(path.read_text())


def find_training(name: str) -> SupervisedTraining:
    """The recipe of `ham train`, of whichever task it is."""
    if name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"train: there is no recipe file {path}; name one, or a recipe of `ham list recipes`")
        text = path.read_text()
        return read_recipe(text, kind_named(_task(text), f"train: {path}").recipe)
    for kind in kinds.values():
        if name in kind.named:
            return cast(SupervisedTraining, kind.named.create(name))
    raise UnknownNameError(f"no recipe '{name}'{did_you_mean(name, training_names())}")


def training_names() -> list[str]:
    """Every recipe of `ham train`, task by task."""
    return [name for kind in kinds.values() for name in kind.named.names()]


def _task(text: str) -> object:
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
