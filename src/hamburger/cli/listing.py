"""`ham list`: the names in the registries, and the recipes as a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer

from hamburger.errors import check_choice
from hamburger.training.recipe import read_device

TableRow = tuple[str, ...]


def _registered(module: str, registry: str, *further: str) -> list[str]:
    """The names in a registry, which is imported only now: a list of hams should not wait for data sets and recipes."""
    source = getattr(import_module(f"hamburger.{module}"), registry)
    return [*(source() if callable(source) else source.names()), *further]


def _training_recipes() -> list[str]:
    from hamburger.tasks import recipes

    return [name for registry in recipes.values() for name in registry]


# other packages may add entries
names: dict[str, Callable[[], list[str]]] = {
    "hams": partial(_registered, "hams", "hams"),
    "contexts": partial(_registered, "contexts", "contexts"),
    "backbones": partial(_registered, "backbones", "backbones", "timm:<name>"),
    "heads": partial(_registered, "segmentation.model", "models"),
    "datasets": partial(_registered, "segmentation.data", "datasets"),
    "weights": partial(_registered, "inference.find_weights", "list_weights"),
    "recipes": _training_recipes,
    "detection-sets": partial(_registered, "detection.data", "detection_sets"),
    "stereo-sets": partial(_registered, "stereo.data", "stereo_sets"),
    "gans": partial(_registered, "generation.model", "list_gans"),
    "image-sets": partial(_registered, "classification.data", "image_sources"),
    "gan-recipes": partial(_registered, "generation.recipe", "gan_recipes"),
}


def list_names(
    kind: Annotated[str | None, typer.Argument(help="hams, contexts, recipes, ...; default: all kinds")] = None,
) -> None:
    """List the registered names, of all kinds or of one; recipes with task, device and duration."""
    if kind is None:
        for name, known in names.items():
            typer.echo(f"{name}: {' '.join(known())}")
        return
    check_choice("list", "kind", kind, tuple(names))
    if kind == "recipes":
        from hamburger.tasks import recipes

        _print_columns([row for task, registry in recipes.items() for row in describe_recipes(task, registry)])
    elif kind == "gan-recipes":
        from hamburger.generation.recipe import gan_recipes

        _print_columns(describe_recipes("generation", gan_recipes))
    else:
        typer.echo(" ".join(names[kind]()))


def describe_recipes(task: str, recipes: Mapping[str, Callable[..., Any]]) -> list[TableRow]:
    """Name, task, device and duration of each recipe, read from `Device: CPU. Duration: 2 min.` in its docstring.

    A duration that was not measured is left out of the docstring and shown as "-".
    """
    rows: list[TableRow] = []
    for name, recipe in recipes.items():
        text = recipe.__doc__ or ""
        duration = re.search(r"Duration: (.+)\.$", text, re.MULTILINE)
        rows.append((name, task, read_device(recipe) or "-", duration[1] if duration else "-"))
    return rows


def _print_columns(rows: list[TableRow]) -> None:
    rows = [("recipe", "task", "device", "duration"), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
