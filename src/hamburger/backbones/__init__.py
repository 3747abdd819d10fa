"""Backbones: encoders from images to feature maps, created by name."""

# importing a module registers its backbones
from hamburger.backbones import (
    base,  # noqa: F401
    resnet,  # noqa: F401
)
from hamburger.backbones.base import Backbone, LoadReport, backbones
from hamburger.backbones.create import create_backbone
from hamburger.backbones.weights import load_backbone

__all__ = ["Backbone", "LoadReport", "backbones", "create_backbone", "load_backbone"]
