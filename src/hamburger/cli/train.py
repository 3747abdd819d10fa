"""`ham train`: a recipe into a run folder, with progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.training.metrics_log import Began, Drawn, Evaluated, Event, Logged, Note

if TYPE_CHECKING:
    from rich.console import Console

    from hamburger.training.metrics_log import Listener
    from hamburger.training.run_folder import Result


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
    from hamburger.tasks import train as run_training
    from hamburger.tasks.recipes import find_training, kind_of
    from hamburger.training.recipe_io import apply

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
    from hamburger.errors import HamburgerError, Interrupted
    from hamburger.training.accelerator import is_rank_zero

    try:
        with Display(Console(stderr=True)) as show:
            result = training(show)
    except Interrupted as stopped:
        if not is_rank_zero():  # one of several processes speaks for all
            raise typer.Exit(0) from None
        typer.echo(f"ham: {stopped}", err=True)
        raise typer.Exit(130) from None
    except HamburgerError as mistake:
        if is_rank_zero():
            raise
        typer.echo(f"ham: process {distributed.rank()}: {mistake}", err=True)
        raise typer.Exit(2) from None
    return result if is_rank_zero() else None


# ----------------------------------------------------------------------------------------------------------------------
# A run on the terminal: one moving line where there is a terminal, plain lines where there is none.


class Display:
    """`with Display(console) as show: train(..., on_event=show)`"""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Any = None
        self._task: Any = None
        self._steps = 0
        self._score = ""  # the last

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Began):
            self._begin(event)
        elif isinstance(event, Note):
            self._say(event.text)
        elif isinstance(event, Logged):
            self._logged(event)
        elif isinstance(event, Drawn):
            self._say(f"step {event.step}: wrote {event.path}")
        elif isinstance(event, Evaluated):
            said = [score.spoken(value) for score, value in event.scores]
            self._score = said[0]
            self._say(f"step {event.step}: {', '.join(said)}{', the best so far' if event.best else ''}")

    def _begin(self, began: Began) -> None:
        self._steps = began.steps
        where = began.device if began.processes == 1 else f"{began.processes} processes on {began.device}"
        start = f" from step {began.step}" if began.step else ""
        validate = "" if began.val_images is None else f"{began.val_images:,} to validate, "
        self._say(
            f"{began.run}: {began.parameters:,} parameters, {began.train_images:,} images to train on, "
            f"{validate}{began.steps:,} steps{start} on {where}"
        )
        if not self.console.is_terminal:
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rest]}"),
            console=self.console,
            transient=True,
        )
        self._task = self._bar.add_task("training", total=began.steps, completed=began.step, rest="")
        self._bar.start()

    def _logged(self, logged: Logged) -> None:
        score = f", {self._score}" if self._score else ""
        rest = (
            f"{logged.words or f'loss {logged.loss:.4f}'}{score}, {logged.images_per_s:.1f} images/s, "
            f"{100 * logged.data_wait:.0f} % waiting for data, {clock(logged.remaining_s)} left"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=logged.step, rest=rest)
        else:
            self._say(f"step {logged.step} of {self._steps}: {rest}")

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
