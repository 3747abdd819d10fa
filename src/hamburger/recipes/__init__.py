"""Runs as values: each row of the paper's tables is one function that returns a frozen Recipe."""

from hamburger.recipes import segmentation
from hamburger.recipes.base import Data, Model, Optim, Recipe, recipes

__all__ = ["Data", "Model", "Optim", "Recipe", "recipes", "segmentation"]
