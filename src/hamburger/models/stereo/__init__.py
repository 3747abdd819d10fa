"""Networks that see depth in two images."""

from hamburger.models.stereo.create import create_stereo
from hamburger.models.stereo.network import StereoNet

__all__ = ["StereoNet", "create_stereo"]
