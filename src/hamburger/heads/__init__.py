"""Decoders: feature maps to logits, with the loss each is trained with."""

# importing a module registers what it holds
from hamburger.heads import (  # noqa: F401
    apcnet,
    cfnet,
    danet,
    dfn,
    dmnet,
    emanet,
    encnet,
    hamnet,
    lightham,
    ocrnet,
    psp,
    sanet,
    sgr,
    spygr,
)
