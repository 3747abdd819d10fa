"""`ham list`: what there is, from the registries."""

from __future__ import annotations

from typing import Annotated

import typer

from hamburger.errors import check_choice

KINDS = (
    *("hams", "contexts", "backbones", "heads", "datasets", "recipes", "ablations"),
    *("detection-sets", "stereo-sets", "gans", "image-sets", "gan-recipes"),
)


def listing(kind: Annotated[str | None, typer.Argument(help=f"one of: {', '.join(KINDS)}")] = None) -> None:
    """List the names that the library knows, all kinds or one."""
    if kind is not None:
        check_choice("list", "kind", kind, KINDS)
    for name in KINDS if kind is None else (kind,):
        prefix = "" if kind else f"{name}: "
        typer.echo(prefix + " ".join(names_of(name)))


def names_of(kind: str) -> list[str]:
    """Imported when asked for: data sets and recipes are much to load for a list of hams."""
    if kind == "hams":
        from hamburger.solvers import hams

        return hams.names()
    if kind == "contexts":
        from hamburger.layers.context import contexts

        return contexts.names()
    if kind == "backbones":
        from hamburger.backbones import backbones

        return [*backbones.names(), "timm:<name>"]
    if kind == "heads":
        from hamburger.models.create import models

        return models.names()
    if kind == "datasets":
        from hamburger.data.base import datasets

        return datasets.names()
    if kind == "detection-sets":
        from hamburger.data.detection import detection_sets

        return detection_sets.names()
    if kind == "stereo-sets":
        from hamburger.data.stereo import stereo_sets

        return stereo_sets.names()
    if kind == "gans":
        from hamburger.gan import list_gans

        return list_gans()
    if kind == "image-sets":
        from hamburger.data.generation import image_sources

        return image_sources.names()
    if kind == "ablations":
        from hamburger.recipes.ablations import ablations

        return ablations.names()
    if kind == "gan-recipes":
        from hamburger.recipes.gan_base import gan_recipes

        return gan_recipes.names()
    from hamburger.recipes.find import training_names

    return training_names()
