"""Heads: decoders from feature maps to logits, each with its training loss.

Other installed packages register theirs in modules that the entry point group `hamburger.heads` names.
"""

from importlib.metadata import entry_points

from hamburger.segmentation.heads import hamnet  # noqa: F401  (registers)
from hamburger.segmentation.heads.base import heads

for entry in entry_points(group="hamburger.heads"):
    entry.load()

__all__ = ["heads"]
