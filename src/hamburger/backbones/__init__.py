"""Encoders: images to feature maps, by name."""

# importing a module registers what it holds
from hamburger.backbones import (
    base,  # noqa: F401
    resnet,  # noqa: F401
)
from hamburger.backbones.base import Backbone, LoadReport, backbones
from hamburger.backbones.create import create_backbone
from hamburger.backbones.weights import load_backbone

__all__ = ["Backbone", "LoadReport", "backbones", "create_backbone", "load_backbone"]
