"""`ham list`: the names in the registries, and the recipes as a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from hamburger.errors import check_choice

TableRow = tuple[str, ...]


def _hams() -> list[str]:
    from hamburger.hams import hams

    return hams.names()


def _contexts() -> list[str]:
    from hamburger.contexts import contexts

    return contexts.names()


def _backbones() -> list[str]:
    from hamburger.backbones import backbones

    return [*backbones.names(), "timm:<name>"]


def _heads() -> list[str]:
    from hamburger.segmentation.model import models

    return models.names()


def _datasets() -> list[str]:
    from hamburger.segmentation.data import datasets

    return datasets.names()


def _recipes() -> list[str]:
    from hamburger.tasks import recipes

    return [name for registry in recipes.values() for name in registry]


def _detection_sets() -> list[str]:
    from hamburger.detection.data import detection_sets

    return detection_sets.names()


def _stereo_sets() -> list[str]:
    from hamburger.stereo.data import stereo_sets

    return stereo_sets.names()


def _gans() -> list[str]:
    from hamburger.generation.model import list_gans

    return list_gans()


def _image_sets() -> list[str]:
    from hamburger.classification.data import image_sources

    return image_sources.names()


def _gan_recipes() -> list[str]:
    from hamburger.generation.recipe import gan_recipes

    return gan_recipes.names()


# Each function imports its registry when called: a list of hams should not wait for data sets and recipes.
# Other packages may add entries.
names: dict[str, Callable[[], list[str]]] = {
    "hams": _hams,
    "contexts": _contexts,
    "backbones": _backbones,
    "heads": _heads,
    "datasets": _datasets,
    "recipes": _recipes,
    "detection-sets": _detection_sets,
    "stereo-sets": _stereo_sets,
    "gans": _gans,
    "image-sets": _image_sets,
    "gan-recipes": _gan_recipes,
}


def _recipe_rows() -> list[TableRow]:
    from hamburger.tasks import recipes

    return [row for task, registry in recipes.items() for row in describe_recipes(task, registry)]


def _gan_recipe_rows() -> list[TableRow]:
    from hamburger.generation.recipe import gan_recipes

    return describe_recipes("generation", gan_recipes)


tables: dict[str, Callable[[], list[TableRow]]] = {"recipes": _recipe_rows, "gan-recipes": _gan_recipe_rows}


def list_names(
    kind: Annotated[str | None, typer.Argument(help="hams, contexts, recipes, ...; default: all kinds")] = None,
) -> None:
    """List the registered names, of all kinds or of one; recipes with task, device and duration."""
    if kind is None:
        for name, known in names.items():
            typer.echo(f"{name}: {' '.join(known())}")
        return
    check_choice("list", "kind", kind, tuple(names))
    if kind in tables:
        typer.echo(align_columns([("recipe", "task", "device", "duration"), *tables[kind]()]))
    else:
        typer.echo(" ".join(names[kind]()))


def describe_recipes(task: str, recipes: Mapping[str, Callable[..., Any]]) -> list[TableRow]:
    """Name, task, device and duration of each recipe, read from `Device: CPU. Duration: 2 min.` in its docstring.

    A duration that was not measured is left out of the docstring and shown as "-".
    """
    rows: list[TableRow] = []
    for name, recipe in recipes.items():
        text = recipe.__doc__ or ""
        device = re.search(r"Device: (\w+)\.", text)
        duration = re.search(r"Duration: (.+)\.$", text, re.MULTILINE)
        rows.append((name, task, device[1] if device else "-", duration[1] if duration else "-"))
    return rows


def align_columns(rows: list[TableRow]) -> str:
    """`rows` as text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
