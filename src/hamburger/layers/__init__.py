"""nn.Modules that keep the shape of a feature map."""

from hamburger.layers.burger import Hamburger
from hamburger.layers.ham import HamLayer
from hamburger.layers.sharded import shard_positions

__all__ = ["HamLayer", "Hamburger", "shard_positions"]
