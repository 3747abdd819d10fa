"""Recipes of all tasks, by name or from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from hamburger.errors import InputError, UnknownNameError, did_you_mean
from hamburger.generation.recipe import GanRecipe, gan_recipes
from hamburger.segmentation.recipe import SegmentationRecipe, segmentation_recipes
from hamburger.tasks import task_named, tasks
from hamburger.training.recipe import SupervisedTraining, read_recipe


def find_recipe(name: str) -> SegmentationRecipe:
    """A segmentation recipe by name (`voc-ablation`) or file (`some/run/recipe.json`)."""
    if not name.endswith(".json"):
        return segmentation_recipes.create(name)
    path = Path(name)
    if not path.is_file():
        raise InputError(f"train: there is no recipe file {path}; name one, or a recipe of `ham list recipes`")
    return from_json(path.read_text())


def find_training(name: str) -> SupervisedTraining:
    """A recipe of any supervised task, by name or file."""
    if name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"train: there is no recipe file {path}; name one, or a recipe of `ham list recipes`")
        text = path.read_text()
        return read_recipe(text, task_named(_stored_task(text), f"train: {path}").recipe)
    for task in tasks.values():
        if name in task.recipes:
            return cast(SupervisedTraining, task.recipes.create(name))
    raise UnknownNameError(f"no recipe '{name}'{did_you_mean(name, training_names())}")


def training_names() -> list[str]:
    """The names of all recipes of `ham train`, task by task."""
    return [name for task in tasks.values() for name in task.recipes.names()]


def _stored_task(text: str) -> object:
    try:
        values = json.loads(text)
    except json.JSONDecodeError:
        return None  # reading it as a recipe raises the error
    return values.get("task") if isinstance(values, dict) else None


def find_gan_recipe(name: str) -> GanRecipe:
    """A GAN recipe by name (`cifar10`) or file (`some/run/recipe.json`)."""
    if not name.endswith(".json"):
        return gan_recipes.create(name)
    path = Path(name)
    if not path.is_file():
        raise InputError(f"gan train: there is no recipe file {path}; name one, or one of `ham list gan-recipes`")
    return read_recipe(path.read_text(), GanRecipe)


def from_json(text: str) -> SegmentationRecipe:
    """The segmentation recipe that `to_json` wrote; missing fields take their defaults."""
    return read_recipe(text, SegmentationRecipe)
