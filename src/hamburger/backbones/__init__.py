"""Backbones: encoders from images to feature maps, created by name."""

from hamburger.backbones.create import create_backbone, load_backbone
from hamburger.backbones.networks import Backbone, backbones

__all__ = ["Backbone", "backbones", "create_backbone", "load_backbone"]
