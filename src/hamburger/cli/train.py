"""`ham train`: a recipe into a run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hamburger.engine.events import Listener
    from hamburger.engine.result import Result


def train(
    recipe: Annotated[str, typer.Argument(help="a name of `ham list recipes`, or a recipe.json")],
    run: Annotated[Path, typer.Option(help="the run folder; it must not hold another run")],
    data: Annotated[Path | None, typer.Option(help="the data folder; embedded sets need none")] = None,
    seed: Annotated[int | None, typer.Option(help="instead of the recipe's")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="such as optim.lr=0.01; may be repeated")] = None,
    devices: Annotated[int, typer.Option(help="processes on this machine, one per GPU")] = 1,
    nodes: Annotated[int, typer.Option(help="machines; start the command on each, or use torchrun")] = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on from the last checkpoint in the run folder")] = False,
    light: Annotated[bool, typer.Option("--light", help="leave no checkpoint behind when it is finished")] = False,
) -> None:
    """Train a network, for the task of its recipe; what is stopped, by whatever, goes on with --resume."""
    from hamburger.recipes.find import find_training
    from hamburger.recipes.kinds import kind_of
    from hamburger.recipes.overrides import apply
    from hamburger.tasks import train as run_training

    wanted = apply(find_training(recipe), settings or ())
    wanted = wanted if seed is None else replace(wanted, seed=seed)
    result = shown(
        lambda listen: run_training(
            wanted,
            run,
            data=data,
            devices=devices,
            nodes=nodes,
            accelerator=accelerator,
            resume=resume,
            light=light,
            on_event=listen,
        )
    )
    if result is not None:
        found, score = result.values, kind_of(wanted).score
        speed = "" if found["images_per_s"] is None else f"{found['images_per_s']:.1f} images/s, "
        typer.echo(
            f"{score.spoken(found[score.name])} ({found['protocol']}) after {found['steps']} steps, "
            f"best {score.shown(found[f'best_{score.name}'])} at step {found['best_step']}; {speed}"
            f"{100 * found['data_wait']:.0f} % of the time waiting for data; results in {result.run}"
        )


def shown(training: Callable[[Listener], Result]) -> Result | None:
    """A training with its progress on the terminal; None in the processes that leave speaking to the first."""
    from rich.console import Console

    from hamburger import distributed
    from hamburger.cli.progress import Display
    from hamburger.engine.machine import is_first
    from hamburger.errors import HamburgerError, Interrupted

    try:
        with Display(Console(stderr=True)) as show:
            result = training(show)
    except Interrupted as stopped:
        if not is_first():  # one of several processes speaks for all
            raise typer.Exit(0) from None
        typer.echo(f"ham: {stopped}", err=True)
        raise typer.Exit(130) from None
    except HamburgerError as mistake:
        if is_first():
            raise
        typer.echo(f"ham: process {distributed.rank()}: {mistake}", err=True)
        raise typer.Exit(2) from None
    return result if is_first() else None
