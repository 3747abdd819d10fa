"""Decoders: feature maps to logits, with the loss each is trained with."""

# importing a module registers what it holds
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
