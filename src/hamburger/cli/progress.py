"""A run on the terminal: one moving line where there is a terminal, plain lines where there is none."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from hamburger.engine.events import Began, Drawn, Evaluated, Event, Logged, Note

if TYPE_CHECKING:
    from rich.console import Console


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
