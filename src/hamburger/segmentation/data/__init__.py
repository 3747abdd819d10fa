"""Segmentation data sets, their checks and batches. Importing the package registers every data set."""

from hamburger.segmentation.data import camvid, folder, pascal_context, patchwork, voc
from hamburger.segmentation.data.base import SegmentationSet, create_dataset, datasets
from hamburger.training.datasets import IGNORE, Colour, Sample

__all__ = [
    "IGNORE",
    "Colour",
    "Sample",
    "SegmentationSet",
    "camvid",
    "create_dataset",
    "datasets",
    "folder",
    "pascal_context",
    "patchwork",
    "voc",
]
