"""The kinds of recipe that `ham train` takes, one for each task, and the scores that their runs are judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hamburger.errors import InputError, did_you_mean
from hamburger.metrics.score import Score
from hamburger.recipes.base import Recipe, SupervisedTraining, recipes
from hamburger.recipes.check import check_recipe
from hamburger.recipes.class_base import ClassRecipe, class_recipes
from hamburger.recipes.class_check import check_class_recipe
from hamburger.registry import Registry


@dataclass(frozen=True)
class Kind:
    """- `task`: what a recipe.json, a weights file and a result say under "task"
    - `networks`: what is trained, as the title of a report says it
    - `recipe`, `named`, `check`: the class, the recipes of `ham list recipes`, and `check(recipe, processes=1)`
    - `scores`: the numbers that are shown; the first decides which weights are the best
    - `pooled`: what the score is taken over, in words for the reader of a report
    - `each`: what the score of a single class is called, where there is one
    """

    task: str
    networks: str
    recipe: type[SupervisedTraining]
    named: Registry[Any]
    check: Callable[..., None]
    scores: tuple[Score, ...]
    pooled: str
    each: Score | None = None

    @property
    def score(self) -> Score:
        return self.scores[0]


SEGMENTATION = Kind(
    task="segmentation",
    networks="HamNet",
    recipe=Recipe,
    named=recipes,
    check=check_recipe,
    scores=(Score("miou", "mIoU"), Score("pixel_accuracy", "pixel accuracy")),
    pooled="pooled over the whole validation split; pixels without a label do not count",
    each=Score("per_class", "IoU"),
)
CLASSES = Kind(
    task="classes",
    networks="Classifiers",
    recipe=ClassRecipe,
    named=class_recipes,
    check=check_class_recipe,
    scores=(Score("accuracy", "accuracy"),),
    pooled="the share of the images of the validation split that are named rightly",
    each=Score("per_class", "accuracy"),
)
kinds = {kind.task: kind for kind in (SEGMENTATION, CLASSES)}


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
