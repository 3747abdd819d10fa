"""All recipes and task kinds by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from hamburger.classification.recipe import CLASSES
from hamburger.detection.recipe import DETECTION
from hamburger.errors import InputError, UnknownNameError, did_you_mean
from hamburger.generation.recipe import GanRecipe, gan_recipes
from hamburger.segmentation.recipe import (
    SEGMENTATION,
    SegmentationRecipe,
    segmentation_recipes,
)
from hamburger.stereo.recipe import STEREO
from hamburger.training.recipe import SupervisedTraining
from hamburger.training.recipe_io import read_recipe
from hamburger.training.task import Kind

# ----------------------------------------------------------------------------------------------------------------------
# The kinds of recipe that `ham train` takes, one for each task, and the scores that their runs are judged by.


kinds = {kind.task: kind for kind in (SEGMENTATION, CLASSES, DETECTION, STEREO)}


def kind_of(recipe: object) -> Kind:
    """By the class of a recipe."""
    for kind in kinds.values():
        if type(recipe) is kind.recipe:
            return kind
    raise InputError(f"train: no task trains a {type(recipe).__name__}; give a recipe of `ham list recipes`")


def kind_named(task: object, source: str) -> Kind:
    """By the word under "task" in what `source` holds; segmentation writes none, being older than the word."""
    if task is None:
        return SEGMENTATION
    if not isinstance(task, str) or task not in kinds:
        raise InputError(f"{source} is for the task {task!r}, which is not known{did_you_mean(str(task), kinds)}")
    return kinds[task]


# ----------------------------------------------------------------------------------------------------------------------
# A recipe by its name, or from a file.


def find_recipe(name: str) -> SegmentationRecipe:
    """`voc-ablation`, or `some/run/recipe.json`."""
    if not name.endswith(".json"):
        return segmentation_recipes.create(name)
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


# ----------------------------------------------------------------------------------------------------------------------
# Recipes as JSON, by the types of their fields, and what sets two of them apart.


def from_json(text: str) -> SegmentationRecipe:
    """The segmentation recipe that `to_json` wrote; fields that are not there have their defaults."""
    return read_recipe(text, SegmentationRecipe)
