"""`ham train`: train a recipe, with progress on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.cli.output import DataFolder, Device, Devices, Resume, RunFolder, Seed, Settings
from hamburger.training.metrics_log import Event, Note, RunStarted, SamplesDrawn, ScoresEvaluated, StepLogged

if TYPE_CHECKING:
    from rich.console import Console

    from hamburger.training.run_folder import Result


def train(
    recipe: Annotated[str, typer.Argument(help="a name from `ham list recipes`, or a recipe.json")],
    run: RunFolder,
    data: DataFolder = None,
    seed: Seed = None,
    settings: Settings = None,
    devices: Devices = 1,
    accelerator: Device = "auto",
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
    hardware: dict[str, Any] = {"devices": devices, "accelerator": accelerator}  # train checks them
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


def run_with_display(training: Callable[..., Result]) -> Result | None:
    """Run `training` with its progress on the terminal; return its result on rank 0, None elsewhere."""
    from rich.console import Console

    from hamburger import distributed
    from hamburger.errors import HamburgerError, Interrupted
    from hamburger.training.accelerator import is_rank_zero

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


class TrainingDisplay:
    """Progress of a run: a bar on a terminal, plain lines elsewhere.

    `with TrainingDisplay(console) as show: train(..., on_event=show)`
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rest]}"),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.bar.add_task("training", total=None, rest="")
        self.steps = 0
        self.score = ""  # of the last evaluation

    def __enter__(self) -> TrainingDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:  # elsewhere, stopping a bar prints an empty line
            self.bar.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case StepLogged():
                self._show_step(event)
            case Note(text):
                self._print(text)
            case SamplesDrawn(step, path):
                self._print(f"step {step}: wrote {path}")
            case ScoresEvaluated():
                scores = [metric.describe(value) for metric, value in event.scores]
                self.score = f", last {scores[0]}"
                self._print(f"step {event.step}: {', '.join(scores)}{', the best so far' if event.best else ''}")

    def _start(self, started: RunStarted) -> None:
        self.steps = started.steps
        where = started.device if started.processes == 1 else f"{started.processes} processes on {started.device}"
        start = f" from step {started.step}" if started.step else ""
        validate = "" if started.val_images is None else f"{started.val_images:,} to validate, "
        self._print(
            f"{started.run}: {started.parameters:,} parameters, {started.train_images:,} images to train on, "
            f"{validate}{started.steps:,} steps{start} on {where}"
        )
        self.bar.update(self.task, total=started.steps, completed=started.step)
        self.bar.start()

    def _show_step(self, logged: StepLogged) -> None:
        remaining = timedelta(seconds=round(logged.remaining_s))
        rest = (
            f"{logged.loss_text or f'loss {logged.loss:.4f}'}{self.score}, {logged.images_per_s:.1f} images/s, "
            f"{100 * logged.data_wait:.0f} % waiting for data, {remaining} left"
        )
        self.bar.update(self.task, completed=logged.step, rest=rest)
        if not self.console.is_terminal:
            self._print(f"step {logged.step} of {self.steps}: {rest}")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
