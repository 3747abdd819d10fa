"""Images with a class each, for networks that generate them. Importing the package registers every set."""

from hamburger.data.generation import cifar10, figures, folder, tiny_imagenet
from hamburger.data.generation.base import Source, image_sources
from hamburger.data.generation.load import ImageSet, load_images

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
