"""Image-class data sets, for classification and generation. Importing the package registers every data set."""

from hamburger.classification.data import cifar10, figures, folder, tiny_imagenet
from hamburger.classification.data.base import ImageSource, image_sources
from hamburger.classification.data.load import ImageSet, load_images

__all__ = [
    "ImageSet",
    "ImageSource",
    "cifar10",
    "figures",
    "folder",
    "image_sources",
    "load_images",
    "tiny_imagenet",
]
