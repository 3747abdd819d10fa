"""nn.Modules that keep the shape of a feature map."""

from hamburger.layers.burger import Hamburger
from hamburger.layers.ham import HamLayer

__all__ = ["HamLayer", "Hamburger"]
