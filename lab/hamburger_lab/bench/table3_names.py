"""What `ham bench table3` knows by name: the contexts, and what their defaults do not show."""

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
    """One wide head shuts out flash kernels, and what is left of fused attention may lose to the plain products."""
    return {"fused": _context(name), "materialised": _context(name, materialise=True)}


# The ways to build one, by the note that tells them apart: the fastest counts, and its row says which it was.
# First the authors' own layer, attention as the paper ran it, and as one would today.
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
    """The ways to build it, by the note that tells them apart."""
    name = module.removesuffix(COMPILED)
    ways = VARIANTS.get(name) or ATTENTION_BUILDS.get(name) or {"": _context(name)}
    return {note: lambda way=way: way(channels) for note, way in ways.items()}  # type: ignore[misc]
