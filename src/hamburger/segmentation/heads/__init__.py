"""Heads: decoders from feature maps to logits, each with its training loss."""

# importing a module registers its head
from hamburger.segmentation.heads import (
    apcnet,  # noqa: F401
    cfnet,  # noqa: F401
    danet,  # noqa: F401
    dfn,  # noqa: F401
    dmnet,  # noqa: F401
    emanet,  # noqa: F401
    encnet,  # noqa: F401
    hamnet,  # noqa: F401
    lightham,  # noqa: F401
    ocrnet,  # noqa: F401
    psp,  # noqa: F401
    sanet,  # noqa: F401
    sgr,  # noqa: F401
    spygr,  # noqa: F401
)
from hamburger.segmentation.heads.base import heads

__all__ = ["heads"]
