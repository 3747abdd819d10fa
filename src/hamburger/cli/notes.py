"""What a command says beside its result: bars, notes, warnings in one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer


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
