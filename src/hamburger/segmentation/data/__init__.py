"""Segmentation data sets, their checks and batches. Importing the package registers every data set."""

from hamburger.segmentation.data import folder, patchwork, published  # noqa: F401
from hamburger.segmentation.data.base import SegmentationSet, create_dataset, datasets
from hamburger.training.datasets import IGNORE, Sample
from hamburger.training.image_files import Colour

__all__ = ["IGNORE", "Colour", "Sample", "SegmentationSet", "create_dataset", "datasets"]
