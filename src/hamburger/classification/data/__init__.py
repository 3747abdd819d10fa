"""Images with a class each, for networks that generate them. Importing the package registers every set."""

from hamburger.classification.data import cifar10, figures, folder, tiny_imagenet
from hamburger.classification.data.base import ImageSource, image_sources
from hamburger.classification.data.load import ImageSet, load_images

__all__ = [
    "ImageSet",
    "Source",
    "cifar10",
    "figures",
    "folder",
    "image_sources",
    "load_images",
    "tiny_imagenet",
]
