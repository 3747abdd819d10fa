"""Data sets, their checks, augmentation and batches. Importing the package registers every data set."""

from hamburger.data import camvid, context, folder, patchwork, voc
from hamburger.data.base import IGNORE, Colour, Sample, SegmentationSet, datasets
from hamburger.data.create import create_dataset

__all__ = [
    "IGNORE",
    "Colour",
    "Sample",
    "SegmentationSet",
    "camvid",
    "context",
    "create_dataset",
    "datasets",
    "folder",
    "patchwork",
    "voc",
]
