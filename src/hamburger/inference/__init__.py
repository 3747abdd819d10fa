"""Using trained weights, whatever the task: prediction of image files, and export."""

from hamburger.inference.predict_files import read_image

__all__ = ["read_image"]
