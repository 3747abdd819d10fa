"""Progress bars, notes and comma-separated options, shared by the commands."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from hamburger.errors import OptionError


@contextmanager
def image_progress() -> Iterator[Callable[[str, int], object]]:
    """A progress bar; yields `advance(what, count)`."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def advance(what: str, count: int) -> None:
            task = tasks.setdefault(what, None) or bar.add_task(what, total=None)
            tasks[what] = task
            bar.advance(task, count)

        yield advance


def print_note(text: str) -> None:
    typer.echo(f"note: {text}", err=True)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print Python warnings as one-line notes, without their source lines."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(each.message) for each in caught):
        print_note(text)


def parse_names(text: str) -> tuple[str, ...]:
    """Parse `nmf, sa` into names."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_ints(text: str, call: str = "bench", option: str = "sizes") -> tuple[int, ...]:
    """Parse `1024,4096` into integers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{call}: {option} must be comma-separated whole numbers (got {text!r})") from None


def parse_floats(text: str, call: str) -> tuple[float, ...]:
    """Parse `0.5,1`, the scales of an evaluation protocol."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{call}: scales must be comma-separated numbers such as 0.5,1,1.5 (got {text!r})") from None
