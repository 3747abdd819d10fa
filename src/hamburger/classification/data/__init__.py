"""Image-class data sets, for classification and generation. Importing the package registers every data set."""

from hamburger.classification.data import cifar10, sources  # noqa: F401
from hamburger.classification.data.base import ImageSet, ImageSource, image_sources, load_images, open_source

__all__ = ["ImageSet", "ImageSource", "image_sources", "load_images", "open_source"]
