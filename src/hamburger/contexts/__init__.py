"""The context modules, by name. All of them map b c h w -> b c h w.

One paper is one file, with a class decorated by `@contexts.register("<name>")`; `external.py` is a good model, and
`common.py` has what several of them share. A new file is imported below, and its name is added to `ContextName`.
"""

# ruff: noqa: F401 - importing a module registers its contexts
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

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


# -- Hamburgers --------------------------------------------------------------------------------------------------------


HAMBURGERS: dict[HamName, str] = {
    "nmf": "The Hamburger with non-negative matrix factorisation (Geng et al., ICLR 2021).",
    "vq": "The Hamburger with soft vector quantisation (Geng et al., ICLR 2021).",
    "cd": "The Hamburger with concept decomposition (Geng et al., ICLR 2021).",
    # beyond the paper
    "hals": "The Hamburger with NMF by hierarchical alternating least squares (Cichocki and Phan, 2009).",
    "robust": "The Hamburger with robust NMF: low-rank plus sparse (Zhang et al., 2011).",
    "local": "The Hamburger with graph-regularised NMF on the grid of positions (Cai et al., TPAMI 2011).",
    "windowed": "The Hamburger with a global dictionary and one for each window (ours).",
    "learned": "The Hamburger with NMF of learned step sizes (after Gregor and LeCun, ICML 2010), trained by BPTT.",
}


def _register_hamburger(ham: HamName, description: str) -> None:
    def build(channels: int, **options: Any) -> Hamburger:
        return Hamburger(channels, ham=ham, **options)

    build.__doc__ = description
    contexts.register(ham)(build)


for _ham, _description in HAMBURGERS.items():
    _register_hamburger(_ham, _description)


def with_authors_version(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of the named context, with `version="v1"` for a Hamburger unless they give another version.

    For networks that follow the authors' code, whose Hamburger ends in a ReLU.
    """
    return {"version": "v1", **options} if name in HAMBURGERS else dict(options)
