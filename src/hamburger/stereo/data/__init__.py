"""Stereo data sets: image pairs with disparities. Importing the package registers every set."""

from hamburger.stereo.data import middlebury, planes, sceneflow
from hamburger.stereo.data.base import UNKNOWN, StereoSample, StereoSet, create_stereo_set, stereo_sets

__all__ = [
    "UNKNOWN",
    "StereoSample",
    "StereoSet",
    "create_stereo_set",
    "middlebury",
    "planes",
    "sceneflow",
    "stereo_sets",
]
