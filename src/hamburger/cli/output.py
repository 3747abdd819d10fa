"""Progress bars, notes and comma-separated options, shared by the commands."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from hamburger.errors import OptionError


@contextmanager
def image_bar() -> Iterator[Callable[[str, int], object]]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def advance(what: str, count: int) -> None:
            task = tasks.setdefault(what, None) or bar.add_task(what, total=None)
            tasks[what] = task
            bar.advance(task, count)

        yield advance


def note(text: str) -> None:
    typer.echo(f"note: {text}", err=True)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """A person reads a line; where it stands in the source does not help them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(each.message) for each in caught):
        note(text)


# ----------------------------------------------------------------------------------------------------------------------
# Options that are lists: what stands between commas.


def words(text: str) -> tuple[str, ...]:
    """`nmf, sa` as names."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str, call: str = "bench", option: str = "sizes") -> tuple[int, ...]:
    """`1024,4096` as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{call}: {option} are whole numbers with commas between, got {text!r}") from None


def decimals(text: str, call: str) -> tuple[float, ...]:
    """`0.5,1` as numbers, the scales of a protocol."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{call}: scales are numbers with commas between, such as 0.5,1,1.5; got {text!r}") from None
