"""Benchmark rows as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hamburger_lab.bench.gan import REFERENCE, GanStepRow
from hamburger_lab.bench.network import NetworkRow
from hamburger_lab.bench.size_sweep import SizeSweepRow

if TYPE_CHECKING:
    from rich.table import Table


def gan_table(rows: Sequence[GanStepRow]) -> Table:
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


# ----------------------------------------------------------------------------------------------------------------------
# Rows of `ham bench network` as a table to read.


def network_table(rows: Sequence[NetworkRow]) -> Table:
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


# ----------------------------------------------------------------------------------------------------------------------
# Rows of `ham bench detect` and `ham bench classes` as a table to read.


def sized_table(rows: Sequence[SizeSweepRow], network: str) -> Table:
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
