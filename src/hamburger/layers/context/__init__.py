"""The context zoo: every module by name, all of them b c h w -> b c h w."""

from __future__ import annotations

from typing import Any

from torch import nn

from hamburger.layers.context.base import contexts
from hamburger.layers.context.hamburgers import cd, nmf, vq

__all__ = ["cd", "contexts", "create_context", "list_contexts", "nmf", "vq"]


def list_contexts() -> list[str]:
    """Every name that `create_context` knows."""
    return contexts.names()


def create_context(name: str, channels: int, **options: Any) -> nn.Module:
    """The named context module for feature maps of that many channels."""
    return contexts.create(name, channels, **options)
