"""Modules that `ham bench table3` knows by name: all contexts, and variants of some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from hamburger.contexts import contexts, create_context, with_authors_version
from hamburger_lab.bench.authors_reference import AuthorsNMF

Build = Callable[[int], nn.Module]  # channels -> module


def _context(name: str, **options: Any) -> Build:
    return lambda channels: create_context(name, channels, **with_authors_version(name, options))


def _fused_and_materialised(name: str) -> dict[str, Build]:
    """Return both builds: one wide head rules out flash kernels, and then plain products may be faster."""
    return {"fused": _context(name), "materialised": _context(name, materialise=True)}


# Module -> builds by name; the fastest build counts, and the `note` of its row names it. These are the authors'
# layer, attention with its matrix in memory as in the paper, and attention by today's fused kernels.
VARIANTS: dict[str, dict[str, Build]] = {
    "authors-nmf": {"": AuthorsNMF},
    **{f"{name}-materialised": {"": _context(name, materialise=True)} for name in ("sa", "acf", "da", "nonlocal")},
    # flash kernels take at most 256 channels a head
    "sa-flash": {f"heads={heads}": _context("sa", heads=heads) for heads in (2, 8)},
}
ATTENTION_BUILDS: dict[str, dict[str, Build]] = {
    name: _fused_and_materialised(name) for name in ("sa", "acf", "da", "nonlocal")
}
COMPILED = "+compile"


def module_names() -> list[str]:
    return [*contexts.names(), *VARIANTS]


def builders(module: str, channels: int) -> dict[str, Callable[[], nn.Module]]:
    """Return the builds of a module by name; a module with a single build has the name \"\"."""
    context = module.removesuffix(COMPILED)
    builds = VARIANTS.get(context) or ATTENTION_BUILDS.get(context) or {"": _context(context)}
    return {name: lambda build=build: build(channels) for name, build in builds.items()}  # type: ignore[misc]
