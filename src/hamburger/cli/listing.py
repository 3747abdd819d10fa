"""`ham list`: the names in the registries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from hamburger.errors import check_choice


def _hams() -> list[str]:
    from hamburger.solvers import hams

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
    from hamburger.tasks.recipes import training_names

    return training_names()


def _detection_sets() -> list[str]:
    from hamburger.detection.data import detection_sets

    return detection_sets.names()


def _stereo_sets() -> list[str]:
    from hamburger.stereo.data import stereo_sets

    return stereo_sets.names()


def _gans() -> list[str]:
    from hamburger.generation.networks import list_gans

    return list_gans()


def _image_sets() -> list[str]:
    from hamburger.classification.data import image_sources

    return image_sources.names()


def _gan_recipes() -> list[str]:
    from hamburger.generation.recipe import gan_recipes

    return gan_recipes.names()


# Each imports its registry when called: data sets and recipes take long to load for a list of hams.
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


def listing(
    kind: Annotated[str | None, typer.Argument(help="hams, contexts, recipes, ...; default: all kinds")] = None,
) -> None:
    """List the names that the library knows, of all kinds or of one."""
    if kind is not None:
        check_choice("list", "kind", kind, tuple(names))
    for name in names if kind is None else (kind,):
        prefix = "" if kind else f"{name}: "
        typer.echo(prefix + " ".join(names[name]()))
