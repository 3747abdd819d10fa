"""Rows of `ham bench detect` and `ham bench classes` as a table to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hamburger.bench.sized import Row

if TYPE_CHECKING:
    from rich.table import Table


def table(rows: Sequence[Row], network: str) -> Table:
    from rich.table import Table

    first = rows[0]
    made = Table(
        title=f"training step of {network}, {first.backbone}, context after {first.after}, batch {first.batch}, "
        f"{first.dtype}",
        caption=f"{first.hardware}, torch {first.torch}, TF32 {first.tf32}; medians of {first.repeats} rounds ± IQR, "
        f"networks in shuffled order; x and +MiB: over {first.ratio_to} in the same round",
    )
    made.add_column("context")
    for heading in ("size", "n", "ms", "x", "images/s", "peak MiB", "+MiB"):
        made.add_column(heading, justify="right")
    for size in dict.fromkeys(row.size for row in rows):
        for row in (row for row in rows if row.size == size):
            own = (row.context, str(row.size), "" if row.n is None else f"{row.n:,}")
            peak, more = (f"{mb:,.0f}" if mb is not None else "" for mb in (row.peak_mb, row.context_mb))
            if row.train_ms is None:
                made.add_row(*own, row.note, "", "", peak, more)
                continue
            time = f"{row.train_ms:.1f}" + ("" if row.train_ms_iqr is None else f" ±{row.train_ms_iqr:.1f}")
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            made.add_row(*own, time, ratio, f"{row.images_per_s:,.0f}", peak, more)
        made.add_section()
    return made
