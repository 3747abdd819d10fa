"""Networks that see depth in two images."""

from hamburger.models.stereo.create import create_stereo, load_stereo, save_stereo
from hamburger.models.stereo.network import StereoNet

__all__ = ["StereoNet", "create_stereo", "load_stereo", "save_stereo"]
