"""Rows of `ham bench network` as a table to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hamburger.bench.network import Row

if TYPE_CHECKING:
    from rich.table import Table


def table(rows: Sequence[Row]) -> Table:
    from rich.table import Table

    first = rows[0]
    made = Table(
        title=f"training step of {first.backbone} at stride {first.output_stride}, {first.batch} x {first.crop} x "
        f"{first.crop}, {first.dtype}",
        caption=f"{first.hardware}, torch {first.torch}, TF32 {first.tf32}; medians of {first.repeats} rounds ± IQR, "
        f"networks in shuffled order; x: over {first.ratio_to} in the same round",
    )
    made.add_column("context")
    for heading in ("params M", "ms", "x", "images/s", "peak MiB"):
        made.add_column(heading, justify="right")
    for row in rows:
        params = f"{row.params / 2**20:.2f}"
        peak = "" if row.peak_mb is None else f"{row.peak_mb:,.0f}"
        if row.train_ms is None:
            made.add_row(row.context, params, row.note, "", "", peak)
            continue
        time = f"{row.train_ms:.1f}" + ("" if row.train_ms_iqr is None else f" ±{row.train_ms_iqr:.1f}")
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        made.add_row(row.context, params, time, ratio, f"{row.images_per_s:.0f}", peak)
    return made
