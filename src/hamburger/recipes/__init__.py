"""Runs as values: each row of the paper's tables is one function that returns a frozen Recipe."""

from hamburger.recipes import classes, detection, gan, segmentation, stereo
from hamburger.recipes.base import Data, Model, Optim, Recipe, recipes
from hamburger.recipes.class_base import ClassRecipe, class_recipes
from hamburger.recipes.detect_base import DetectionRecipe, detection_recipes
from hamburger.recipes.gan_base import GanRecipe, gan_recipes
from hamburger.recipes.stereo_base import StereoRecipe, stereo_recipes

__all__ = [
    "ClassRecipe",
    "Data",
    "DetectionRecipe",
    "GanRecipe",
    "Model",
    "Optim",
    "Recipe",
    "StereoRecipe",
    "class_recipes",
    "classes",
    "detection",
    "detection_recipes",
    "gan",
    "gan_recipes",
    "recipes",
    "segmentation",
    "stereo",
    "stereo_recipes",
]
