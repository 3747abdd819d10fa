"""The context zoo: every module by name, all of them b c h w -> b c h w."""

from __future__ import annotations

from typing import Any

from torch import nn

# importing a module registers what it holds
from hamburger.layers.context import (  # noqa: F401
    a2,
    acf,
    apc,
    da,
    dfn,
    dm,
    efficient,
    ema,
    enc,
    external,
    hamburgers,
    lightham,
    nonlocal_,
    ocr,
    psp,
    sa,
    sanet,
    sgr,
    spygr,
)
from hamburger.layers.context.base import contexts

__all__ = ["contexts", "create_context", "list_contexts"]


def list_contexts() -> list[str]:
    """Every name that `create_context` knows."""
    return contexts.names()


def create_context(name: str, channels: int, **options: Any) -> nn.Module:
    """The named context module for feature maps of that many channels."""
    return contexts.create(name, channels, **options)
