"""Rows of `ham bench gan` as a table to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hamburger.bench.gan import REFERENCE, Row

if TYPE_CHECKING:
    from rich.table import Table


def table(rows: Sequence[Row]) -> Table:
    from rich.table import Table

    first = rows[0]
    made = Table(
        title=f"training step of a GAN at {first.resolution} x {first.resolution}, batch {first.batch}, {first.dtype}",
        caption=f"{first.hardware}, torch {first.torch}, hams by {first.backend}"
        f"{', replayed as CUDA graphs' if first.graph else ''}; medians of {first.repeats} rounds; "
        f"added: to the step without context; x: over {REFERENCE}, which computes all scores as published",
    )
    made.add_column("context")
    for heading in ("step ms", "x", "added ms", "x", "module G ms", "module D ms", "x", "peak MiB"):
        made.add_column(heading, justify="right")
    for row in rows:
        if row.step_ms is None:
            made.add_row(row.context, row.note)
            continue
        made.add_row(
            row.context,
            f"{row.step_ms:.2f} ±{row.step_ms_iqr or 0:.2f}",
            shown(row.step_of_ylg),
            shown(row.added_ms),
            shown(row.added_of_ylg),
            shown(row.generator_ms),
            shown(row.discriminator_ms),
            shown(row.module_of_ylg),
            shown(row.peak_mb, 0),
        )
    return made


def shown(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"
