"""`ham train`: train a recipe, with progress on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.cli.output import DataFolder, Device, Devices, Resume, RunFolder, Seed, Settings, suggest

if TYPE_CHECKING:
    from hamburger.training.run_folder import Result


def train(
    recipe: Annotated[str, typer.Argument(help="a name from `ham list recipes`, or a recipe.json")],
    run: RunFolder,
    data: DataFolder = None,
    seed: Seed = None,
    settings: Settings = None,
    devices: Devices = 1,
    accelerator: Device = "auto",
    strategy: Annotated[
        str, typer.Option(help="of several processes: ddp, or fsdp, which shards parameters and optimizer state")
    ] = "ddp",
    resume: Resume = False,
    light: Annotated[bool, typer.Option("--light", help="delete the checkpoint when the run finishes")] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="write profile.txt: where the time of a step goes")
    ] = False,
) -> None:
    """Train a network for the task of its recipe; an interrupted run continues with --resume."""
    from hamburger.tasks import find_training, task_of
    from hamburger.tasks import train as run_training
    from hamburger.training.recipe import apply

    resolved = apply(find_training(recipe), settings or ())
    resolved = resolved if seed is None else replace(resolved, seed=seed)
    hardware: dict[str, Any] = {
        "devices": devices,
        "accelerator": accelerator,
        "strategy": strategy,
    }  # train checks them
    training = partial(run_training, resolved, run, data=data, resume=resume, light=light, profile=profile, **hardware)
    result = run_with_display(training)
    if result is not None:
        values, metric = result.values, task_of(resolved).metric
        speed = "" if values["images_per_s"] is None else f"{values['images_per_s']:.1f} images/s, "
        typer.echo(
            f"{metric.describe(values[metric.name])} ({values['protocol']}) after {values['steps']} steps, "
            f"best {metric.format(values[f'best_{metric.name}'])} at step {values['best_step']}; {speed}"
            f"{100 * values['data_wait']:.0f} % of the time waiting for data; results in {result.run}"
        )
        suggest(f"ham predict {result.run} IMAGE... --out predictions", f"ham report {result.run}")


def run_with_display(training: Callable[..., Result]) -> Result | None:
    """Run `training` with its progress on the terminal; return its result on rank 0, None elsewhere."""
    from rich.console import Console

    from hamburger import distributed
    from hamburger.errors import HamburgerError, Interrupted
    from hamburger.training.accelerator import is_rank_zero
    from hamburger.training.display import TrainingDisplay

    try:
        with TrainingDisplay(Console(stderr=True)) as show:
            result = training(on_event=show)
    except HamburgerError as mistake:
        if is_rank_zero():
            raise
        if isinstance(mistake, Interrupted):  # rank 0 prints the message
            raise typer.Exit(0) from None
        typer.echo(f"ham: process {distributed.rank()}: {mistake}", err=True)
        raise typer.Exit(2) from None
    return result if is_rank_zero() else None
