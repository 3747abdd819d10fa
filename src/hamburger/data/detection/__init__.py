"""Detection sets: images with boxes and masks of objects. Importing the package registers every set."""

from hamburger.data.detection import coco, shapes
from hamburger.data.detection.base import DetectionSet, Scene, detection_sets
from hamburger.data.detection.create import create_detection_set

__all__ = ["DetectionSet", "Scene", "coco", "create_detection_set", "detection_sets", "shapes"]
