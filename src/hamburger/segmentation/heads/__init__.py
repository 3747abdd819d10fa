"""Heads: decoders from feature maps to logits, each with its training loss."""

from hamburger.segmentation.heads import attention, encoding, graphs, hamnet, pyramids, stages  # noqa: F401  (registers)
from hamburger.segmentation.heads.base import heads

__all__ = ["heads"]
