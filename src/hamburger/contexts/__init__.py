"""The context modules, by name. All of them map b c h w -> b c h w."""

from __future__ import annotations

from typing import Any

from torch import nn

# importing a module registers its contexts
from hamburger.contexts import (
    a2,  # noqa: F401
    acf,  # noqa: F401
    apc,  # noqa: F401
    da,  # noqa: F401
    dfn,  # noqa: F401
    dm,  # noqa: F401
    efficient,  # noqa: F401
    ema,  # noqa: F401
    enc,  # noqa: F401
    external,  # noqa: F401
    hamburgers,  # noqa: F401
    lightham,  # noqa: F401
    nonlocal_block,  # noqa: F401
    ocr,  # noqa: F401
    psp,  # noqa: F401
    sa,  # noqa: F401
    sanet,  # noqa: F401
    sgr,  # noqa: F401
    spygr,  # noqa: F401
)
from hamburger.contexts.common import contexts
from hamburger.literals import ContextName

__all__ = ["contexts", "create_context", "list_contexts"]


def list_contexts() -> list[str]:
    """Return every name that `create_context` knows."""
    return contexts.names()


def create_context(name: ContextName | str, channels: int, **options: Any) -> nn.Module:
    """Build the named context module for feature maps of that many channels.

    >>> layer = create_context("nmf", 512, rank=32)

    `options` are those of the module: of `Hamburger` for "nmf", "vq" and "cd", else of the class in the file of that
    name in `hamburger.contexts`.
    """
    return contexts.create(name, channels, **options)
