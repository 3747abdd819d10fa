"""The kinds of recipe that `ham train` takes, one for each task, and the scores that their runs are judged by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hamburger.errors import InputError, did_you_mean
from hamburger.metrics.score import Score
from hamburger.recipes.base import Recipe, SupervisedTraining, recipes
from hamburger.recipes.check import check_recipe
from hamburger.recipes.class_base import ClassRecipe, class_recipes
from hamburger.recipes.class_check import check_class_recipe
from hamburger.recipes.detect_base import DetectionRecipe, detection_recipes
from hamburger.recipes.detect_check import check_detection_recipe
from hamburger.recipes.stereo_base import StereoRecipe, stereo_recipes
from hamburger.recipes.stereo_check import check_stereo_recipe
from hamburger.registry import Registry


@dataclass(frozen=True)
class Kind:
    """- `task`: what a recipe.json, a weights file and a result say under "task"
    - `networks`: what is trained, as the title of a report says it
    - `recipe`, `named`, `check`: the class, the recipes of `ham list recipes`, and `check(recipe, processes=1)`
    - `scores`: the numbers that are shown; the first decides which weights are the best, the others may be None where
      a set does not tell
    - `pooled`: what the score is taken over, in words for the reader of a report
    - `each`: what the score of a single class, or `member`, is called, where there is one; `absent`: when one has none
    """

    task: str
    networks: str
    recipe: type[SupervisedTraining]
    named: Registry[Any]
    check: Callable[..., None]
    scores: tuple[Score, ...]
    pooled: str
    each: Score | None = None
    member: str = "class"
    absent: str = "the class is neither labelled nor predicted"

    @property
    def score(self) -> Score:
        return self.scores[0]

    def told(self, found: Mapping[str, Any]) -> list[tuple[Score, float]]:
        """The scores that a result has, with their values; those of a part of its images say of how many."""
        had = [score for score in self.scores if found.get(score.name) is not None]
        return [(score.told(found, self.member), found[score.name]) for score in had]


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
DETECTION = Kind(
    task="detection",
    networks="Mask R-CNN",
    recipe=DetectionRecipe,
    named=detection_recipes,
    check=check_detection_recipe,
    scores=(Score("mask_map", "mask mAP"), Score("box_map", "box mAP")),
    pooled="COCO's average over ten overlaps from 0.5 to 0.95 and over classes, at most 100 objects an image",
    each=Score("per_class", "mask mAP"),
)
STEREO = Kind(
    task="stereo",
    networks="Stereo networks",
    recipe=StereoRecipe,
    named=stereo_recipes,
    check=check_stereo_recipe,
    scores=(
        Score("epe", "EPE", "px", higher=False),
        Score("over_3", "above 3 px", higher=False),
        Score("over_1", "above 1 px", higher=False),
        Score("epe_pair_mean", "EPE mean over pairs", "px", higher=False),
        Score("epe_seen", "EPE seen by both", "px", higher=False, among="images_seen"),
        Score("over_3_seen", "above 3 px seen by both", higher=False, among="images_seen"),
    ),
    pooled="the mean distance from the true disparity, over all pixels of the validation split where it is known",
    each=Score("per_pair", "EPE", "px", higher=False),
    member="pair",
    absent="no disparity of the pair is known",
)
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
