"""`ham angles`: train a segmentation network and compare gradients of its hams on the way."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from hamburger.cli.output import DataFolder, Device, Resume, RunFolder, Seed, Settings, suggest


def angles(
    recipe: Annotated[str, typer.Argument(help="a segmentation recipe of `ham list recipes`, or a recipe.json")],
    run: RunFolder,
    data: DataFolder = None,
    seed: Seed = None,
    settings: Settings = None,
    accelerator: Device = "auto",
    resume: Resume = False,
    light: Annotated[bool, typer.Option("--light", help="delete the checkpoint when the run finishes")] = False,
) -> None:
    """Train as `ham train` does; every `angles_every` steps (50), compare the one-step gradient with BPTT's."""
    from hamburger.cli.train import run_with_display
    from hamburger.training.recipe import apply
    from hamburger.training.train import train
    from hamburger_lab.ablations.gradient_angles import AngleTask, find_angle_recipe

    resolved = apply(find_angle_recipe(recipe), settings or ())
    resolved = resolved if seed is None else replace(resolved, seed=seed)
    options: dict[str, Any] = {"data": data, "accelerator": accelerator, "resume": resume, "light": light}
    result = run_with_display(partial(train, AngleTask(), resolved, run, **options))
    if result is not None:
        typer.echo(f"{len(result.values['angles'])} comparisons in {result.run / 'result.json'}")
        suggest(f"ham report {result.run}")
