"""Heads: decoders from feature maps to logits, each with its training loss."""

# importing a module registers its head
from hamburger.segmentation.heads import (  # noqa: F401
    cfnet,
    danet,
    dfn,
    emanet,
    encnet,
    hamnet,
    lightham,
    ocrnet,
    pyramids,
    sanet,
    sgr,
    spygr,
)
from hamburger.segmentation.heads.base import heads

__all__ = ["heads"]
