"""What a prediction made, in a few lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hamburger.engine.answers import Answers
from hamburger.use.job import SUMMARY, Summary
from hamburger.use.photos import Found

if TYPE_CHECKING:
    from rich.table import Table

ROWS = 20


def table(answers: Answers, summary: Summary) -> Table:
    """A line for each of the first photographs: its first file, or itself where it has none, and the answer."""
    from rich.markup import escape
    from rich.table import Table

    made = Table()
    for heading in answers.columns:
        made.add_column(heading, overflow="fold")
    for one in summary.done[:ROWS]:
        first = next(iter(one.files.values()), one.image)
        made.add_row(*(escape(cell) for cell in (first, *one.cells)))
    return made


def notes(answers: Answers, found: Found, summary: Summary, out: Path) -> Iterator[str]:
    """Nothing is passed over in silence."""
    if len(summary.done) > ROWS:
        yield f"and {len(summary.done) - ROWS} more"
    yield from answers.notes([one.row for one in summary.done])
    if found.repeated:
        yield f"{len(found.repeated)} named more than once, predicted once: {_some(found.repeated)}"
    if found.left_out:
        yield f"{len(found.left_out)} other files in the folders left out: {_some(found.left_out)}"
    yield f"predicted {len(summary.done)}, failed {len(summary.failed)}; wrote {out / SUMMARY}"


def _some(paths: tuple[Path, ...]) -> str:
    more = f", ... ({len(paths) - 3} more)" if len(paths) > 3 else ""
    return ", ".join(map(str, paths[:3])) + more
