"""The context modules, by name. All of them map b c h w -> b c h w.

One paper is one file, with a class decorated by `@contexts.register("<name>")`; `external.py` is a good model, and
`common.py` has what several of them share. A new file is imported below, and its name is added to `ContextName`.
"""

# ruff: noqa: F401 - importing a module registers its contexts
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from torch import nn

from hamburger.contexts import (
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
    lightham,
    nonlocal_block,
    ocr,
    pooling,
    psp,
    sa,
    sanet,
    sgr,
    spygr,
)
from hamburger.contexts.common import contexts
from hamburger.hams.decompose import HamName
from hamburger.layers.burger import Hamburger
from hamburger.registry import explain_errors

__all__ = ["contexts", "create_context", "list_contexts", "with_authors_version"]

# for editors and type checkers; anyone can register more
# fmt: off
ContextName = Literal[
    "a2", "acf", "apc", "cd", "da", "dfn", "dm", "efficient", "ema", "enc", "external", "hals", "learned", "lightham",
    "local", "nmf", "nonlocal", "ocr", "pooling", "psp", "robust", "sa", "sanet", "sgr", "spygr", "vq", "windowed",
]
# fmt: on


def list_contexts() -> list[str]:
    """Return every name that `create_context` knows.

    >>> for name in list_contexts():
    ...     layer = create_context(name, 512)
    """
    return contexts.names()


@explain_errors("create_context")
def create_context(name: ContextName | str, channels: int, **options: Any) -> nn.Module:
    """Build the named context module for feature maps of that many channels.

    >>> layer = create_context("nmf", 512, rank=32)
    >>> y = layer(x)                                # (b, 512, h, w) -> (b, 512, h, w)

    `options` are those of the module: of `Hamburger` for the hams ("nmf", "vq", "cd", "hals", "robust", "local",
    "windowed" and "learned"), else of the class in the file of that name in `hamburger.contexts`.
    """
    return contexts.create(name, channels, **options)


# -- the three Hamburgers of the paper (Geng et al., ICLR 2021) --------------------------------------------------------


@contexts.register("nmf")
def nmf(channels: int, **options: Any) -> Hamburger:
    """The Hamburger with non-negative matrix factorisation (Geng et al., ICLR 2021)."""
    return Hamburger(channels, ham="nmf", **options)


@contexts.register("vq")
def vq(channels: int, **options: Any) -> Hamburger:
    """The Hamburger with soft vector quantisation (Geng et al., ICLR 2021)."""
    return Hamburger(channels, ham="vq", **options)


@contexts.register("cd")
def cd(channels: int, **options: Any) -> Hamburger:
    """The Hamburger with concept decomposition (Geng et al., ICLR 2021)."""
    return Hamburger(channels, ham="cd", **options)


# -- Hamburgers with the hams that go beyond the paper -----------------------------------------------------------------


@contexts.register("hals")
def hals(channels: int, **options: Any) -> Hamburger:
    """The Hamburger with NMF by hierarchical alternating least squares (Cichocki and Phan, 2009)."""
    return Hamburger(channels, ham="hals", **options)


@contexts.register("robust")
def robust(channels: int, **options: Any) -> Hamburger:
    """The Hamburger with robust NMF: low-rank plus sparse (Zhang et al., 2011)."""
    return Hamburger(channels, ham="robust", **options)


@contexts.register("local")
def local(channels: int, **options: Any) -> Hamburger:
    """The Hamburger with graph-regularised NMF on the grid of positions (Cai et al., TPAMI 2011)."""
    return Hamburger(channels, ham="local", **options)


@contexts.register("windowed")
def windowed(channels: int, **options: Any) -> Hamburger:
    """The Hamburger with a global dictionary and one for each window (ours)."""
    return Hamburger(channels, ham="windowed", **options)


@contexts.register("learned")
def learned(channels: int, **options: Any) -> Hamburger:
    """The Hamburger with NMF of learned step sizes (after Gregor and LeCun, ICML 2010), trained by BPTT."""
    return Hamburger(channels, ham="learned", **options)


def with_authors_version(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of the named context, with `version="v1"` for a Hamburger unless they give another version.

    For networks that follow the authors' code, whose Hamburger ends in a ReLU.
    """
    return {"version": "v1", **options} if name in get_args(HamName) else dict(options)
