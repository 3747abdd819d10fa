"""Detection data sets: images with boxes and masks of objects. Importing the package registers every set."""

from hamburger.detection.data import coco, shapes
from hamburger.detection.data.base import DetectionSet, Scene, create_detection_set, detection_sets

__all__ = ["DetectionSet", "Scene", "coco", "create_detection_set", "detection_sets", "shapes"]
