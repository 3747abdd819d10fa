"""What a prediction made, in a few lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hamburger.use.job import Summary
from hamburger.use.photos import Found

if TYPE_CHECKING:
    from rich.table import Table

ROWS = 20


def table(summary: Summary) -> Table:
    """A line for each of the first photographs: its size and what was found."""
    from rich.markup import escape
    from rich.table import Table

    made = Table()
    for heading in ("written", "size", "found"):
        made.add_column(heading, overflow="fold")
    for one in summary.done[:ROWS]:
        made.add_row(escape(one.label), f"{one.width} x {one.height}", escape(one.words))
    return made


def notes(found: Found, summary: Summary, out: Path) -> Iterator[str]:
    """Nothing is passed over in silence."""
    if len(summary.done) > ROWS:
        yield f"and {len(summary.done) - ROWS} more"
    tiled = sum(one.tiles > 1 for one in summary.done)
    if tiled:
        yield f"{tiled} of them in tiles, where context reaches no further than the tile (see --max-pixels)"
    if found.repeated:
        yield f"{len(found.repeated)} named more than once, predicted once: {_some(found.repeated)}"
    if found.left_out:
        yield f"{len(found.left_out)} other files in the folders left out: {_some(found.left_out)}"
    yield f"predicted {len(summary.done)}, failed {len(summary.failed)}; wrote {out / 'summary.json'}"


def _some(paths: tuple[Path, ...]) -> str:
    more = f", ... ({len(paths) - 3} more)" if len(paths) > 3 else ""
    return ", ".join(map(str, paths[:3])) + more
