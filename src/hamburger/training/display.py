"""Progress of long work: a bar on a terminal or in a notebook, plain lines elsewhere. Needs rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hamburger.errors import printable
from hamburger.training.metrics_log import (
    CheckProgress,
    Event,
    Listener,
    Note,
    RunStarted,
    SamplesDrawn,
    ScoresEvaluated,
    StepLogged,
    ValidationProgress,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

BAR_WIDTH = 12  # so that bar, counts, rate and remaining time fit 80 columns
RATE_SECONDS = 3600  # over which the rate is averaged: the steps of slow work are far apart
LINE_SECONDS = 30  # between lines where a bar cannot be redrawn


def shows_bars(console: Console) -> bool:
    """Whether a bar can be redrawn in place; a notebook needs ipywidgets for it."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


@contextmanager
def progress_bar(what: str, total: int | None = None, *, auto_refresh: bool = True) -> Iterator[Callable[..., None]]:
    """A bar with rate and remaining time; yields a function: `advance`, `completed`, `total` and `description`.

    Where a bar cannot be redrawn, such as in a file, a line is printed every 30 seconds instead.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class NameColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(task.description, no_wrap=True, overflow="ellipsis")

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            rate = task.finished_speed or task.speed
            return Text("" if rate is None else f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each")

    console = Console(stderr=True)
    whole = Column(no_wrap=True)  # where a line is too long, the name alone is cut
    counts, rate = MofNCompleteColumn(table_column=whole), RateColumn(whole)
    times = TimeElapsedColumn(whole), TextColumn("left"), TimeRemainingColumn(table_column=whole)
    name, numbers = NameColumn(), (counts, rate, *times)
    bar = Progress(
        *(name, BarColumn(BAR_WIDTH, table_column=whole), *numbers),
        console=console,
        transient=True,
        auto_refresh=auto_refresh,
        speed_estimate_period=RATE_SECONDS,
    )
    task = bar.add_task(what, total=total)
    if shows_bars(console):
        with bar:
            yield partial(bar.update, task)
        return
    line_is_due = every_seconds(LINE_SECONDS)

    def update(**changes: Any) -> None:
        bar.update(task, **changes)
        if line_is_due():
            words = [str(column.render(bar.tasks[0])) for column in (name, *numbers)]
            console.print(printable(" ".join(filter(None, words))), markup=False, highlight=False, soft_wrap=True)

    yield update


def every_seconds(seconds: float) -> Callable[[], bool]:
    """A function that returns whether so many seconds have passed since it last returned True, or since this call."""
    last = time.monotonic()

    def is_due() -> bool:
        nonlocal last
        if time.monotonic() - last < seconds:
            return False
        last = time.monotonic()
        return True

    return is_due


@contextmanager
def default_display() -> Iterator[Listener]:
    """What shows the events of a run that was started from Python: nothing where the output goes to a file."""
    from rich.console import Console

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield lambda event: None
        return
    with TrainingDisplay(console) as show:
        yield show


class TrainingDisplay:
    """Shows the events of a run.

    `with TrainingDisplay(console) as show: train(..., on_event=show)`
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.console, self.live = console, shows_bars(console)
        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(BAR_WIDTH), MofNCompleteColumn()]
        self.bar = Progress(*columns, TextColumn("{task.fields[rest]}"), console=console, transient=True)
        self.training, self.checking, self.validation = (
            self.bar.add_task(name, total=None, rest="", visible=False)
            for name in ("training", "checking the data", "validating")
        )
        self.phase_start = 0.0
        self.line_is_due = every_seconds(LINE_SECONDS)  # during a phase
        self.steps = 0
        self.score = ""  # of the last evaluation

    def __enter__(self) -> TrainingDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.bar.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case StepLogged():
                self._show_step(event)
            case CheckProgress(done, total):
                self._show_phase(self.checking, done, total)
            case ValidationProgress(done, total):
                self._show_phase(self.validation, done, total)
            case Note(text):
                self._print(text)
            case SamplesDrawn(step, path):
                self._print(f"step {step}: wrote {path}")
            case ScoresEvaluated():
                scores = [metric.describe(value) for metric, value in event.scores]
                self.score = f", last {scores[0]}"
                self.bar.update(self.validation, visible=False)
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
        self.bar.update(self.training, total=started.steps, completed=started.step, visible=True)
        if self.live:
            self.bar.start()

    def _show_step(self, logged: StepLogged) -> None:
        loss = logged.loss_text or f"loss {logged.loss:.4f}"
        rate = f"{logged.images_per_s:.1f} images/s"
        left = f"{timedelta(seconds=round(logged.remaining_s))} left"
        self.bar.update(self.training, completed=logged.step, rest=f"{loss}, {rate}, {left}")
        if not self.live:
            waiting = f"{100 * logged.data_wait:.0f} % waiting for data"
            self._print(f"step {logged.step} of {self.steps}: {loss}{self.score}, {rate}, {waiting}, {left}")

    def _show_phase(self, task: TaskID, done: int, total: int) -> None:
        if done == 0:
            self.phase_start, self.line_is_due = time.monotonic(), every_seconds(LINE_SECONDS)
        seconds = time.monotonic() - self.phase_start
        left = f"{timedelta(seconds=round(seconds / done * (total - done)))} left" if done else ""
        rest = f"{done / seconds:.1f} images/s, {left}" if done and seconds else ""
        self.bar.update(task, completed=done, total=total, rest=rest, visible=done < total)
        if self.live:
            self.bar.start()
        elif done < total and self.line_is_due():
            self._print(f"{self.bar.tasks[task].description}: {done} of {total} images, {rest}")

    def _print(self, text: str) -> None:
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
