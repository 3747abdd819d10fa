"""Stereo pairs with disparities. Importing the package registers every set."""

from hamburger.data.stereo import middlebury, planes, sceneflow
from hamburger.data.stereo.base import UNKNOWN, StereoSample, StereoSet, stereo_sets
from hamburger.data.stereo.create import create_stereo_set

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
