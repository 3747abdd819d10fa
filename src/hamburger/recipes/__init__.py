"""Runs as values: each row of the paper's tables is one function that returns a frozen Recipe."""

from hamburger.recipes import gan, segmentation
from hamburger.recipes.base import Data, Model, Optim, Recipe, recipes
from hamburger.recipes.gan_base import GanRecipe, gan_recipes

__all__ = ["Data", "GanRecipe", "Model", "Optim", "Recipe", "gan", "gan_recipes", "recipes", "segmentation"]
