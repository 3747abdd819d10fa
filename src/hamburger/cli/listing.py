"""`ham list`: what there is, from the registries."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hamburger.errors import check_choice
from hamburger.layers.context.base import contexts
from hamburger.registry import Registry
from hamburger.solvers.base import hams

REGISTRIES: dict[str, Registry[Any]] = {"contexts": contexts, "hams": hams}


def listing(kind: Annotated[str | None, typer.Argument(help=f"one of: {', '.join(REGISTRIES)}")] = None) -> None:
    """List the names that the library knows, all kinds or one."""
    if kind is not None:
        check_choice("list", "kind", kind, REGISTRIES)
    for name, registry in REGISTRIES.items():
        if kind in (None, name):
            prefix = "" if kind else f"{name}: "
            typer.echo(prefix + " ".join(registry.names()))
