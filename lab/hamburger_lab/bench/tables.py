"""Benchmark rows as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hamburger_lab.bench.common import growth_exponent
from hamburger_lab.bench.core import ATTENTION, AUTHORS, OURS, SKLEARN, CoreRow
from hamburger_lab.bench.gan import REFERENCE, GanStepRow
from hamburger_lab.bench.network import NetworkRow
from hamburger_lab.bench.size_sweep import SizeSweepRow

if TYPE_CHECKING:
    from rich.table import Table


def gan_table(rows: Sequence[GanStepRow]) -> Table:
    from rich.table import Table

    first = rows[0]
    table = Table(
        title=f"training step of a GAN at {first.resolution} x {first.resolution}, batch {first.batch}, {first.dtype}",
        caption=f"{first.hardware}, torch {first.torch}, hams by {first.backend}"
        f"{', replayed as CUDA graphs' if first.graph else ''}; medians of {first.repeats} rounds; "
        f"added: to the step without context; x: over {REFERENCE}, which computes all scores as published",
    )
    table.add_column("context")
    for heading in ("step ms", "x", "added ms", "x", "module G ms", "module D ms", "x", "peak MiB"):
        table.add_column(heading, justify="right")
    for row in rows:
        if row.step_ms is None:
            table.add_row(row.context, row.note)
            continue
        table.add_row(
            row.context,
            f"{row.step_ms:.2f} ±{row.step_ms_iqr or 0:.2f}",
            format_optional(row.step_of_ylg),
            format_optional(row.added_ms),
            format_optional(row.added_of_ylg),
            format_optional(row.generator_ms),
            format_optional(row.discriminator_ms),
            format_optional(row.module_of_ylg),
            format_optional(row.peak_mb, 0),
        )
    return table


def format_optional(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


# -- `ham bench network` ----------------------------------------------------------------------------------------------


def network_table(rows: Sequence[NetworkRow]) -> Table:
    from rich.table import Table

    first = rows[0]
    table = Table(
        title=f"training step of {first.backbone} at stride {first.output_stride}, {first.batch} x {first.crop} x "
        f"{first.crop}, {first.dtype}",
        caption=f"{first.hardware}, torch {first.torch}, TF32 {first.tf32}; medians of {first.repeats} rounds ± IQR, "
        f"networks in shuffled order; x: over {first.ratio_to} in the same round",
    )
    table.add_column("context")
    for heading in ("params M", "ms", "x", "images/s", "peak MiB"):
        table.add_column(heading, justify="right")
    for row in rows:
        params = f"{row.params / 2**20:.2f}"
        peak = "" if row.peak_mb is None else f"{row.peak_mb:,.0f}"
        if row.train_ms is None:
            table.add_row(row.context, params, row.note, "", "", peak)
            continue
        time = f"{row.train_ms:.1f}" + ("" if row.train_ms_iqr is None else f" ±{row.train_ms_iqr:.1f}")
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.context, params, time, ratio, f"{row.images_per_s:.0f}", peak)
    return table


# -- `ham bench detect` and `ham bench classes` -----------------------------------------------------------------------


def size_sweep_table(rows: Sequence[SizeSweepRow], network: str) -> Table:
    from rich.table import Table

    first = rows[0]
    table = Table(
        title=f"training step of {network}, {first.backbone}, context after {first.after}, batch {first.batch}, "
        f"{first.dtype}",
        caption=f"{first.hardware}, torch {first.torch}, TF32 {first.tf32}; medians of {first.repeats} rounds ± IQR, "
        f"networks in shuffled order; x and +MiB: over {first.ratio_to} in the same round",
    )
    table.add_column("context")
    for heading in ("size", "n", "ms", "x", "images/s", "peak MiB", "+MiB"):
        table.add_column(heading, justify="right")
    for size in dict.fromkeys(row.size for row in rows):
        for row in (row for row in rows if row.size == size):
            labels = (row.context, str(row.size), "" if row.n is None else f"{row.n:,}")
            peak, more = (f"{mb:,.0f}" if mb is not None else "" for mb in (row.peak_mb, row.context_mb))
            if row.train_ms is None:
                table.add_row(*labels, row.note, "", "", peak, more)
                continue
            time = f"{row.train_ms:.1f}" + ("" if row.train_ms_iqr is None else f" ±{row.train_ms_iqr:.1f}")
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            table.add_row(*labels, time, ratio, f"{row.images_per_s:,.0f}", peak, more)
        table.add_section()
    return table


detector_table = partial(size_sweep_table, network="Mask R-CNN")
classifier_table = partial(size_sweep_table, network="a classifier")


# -- `ham bench core` -------------------------------------------------------------------------------------------------

RIVALS = (AUTHORS, SKLEARN, ATTENTION)


def core_times_table(rows: Sequence[CoreRow]) -> Table:
    """Return one line per ham, mode and n: our time and spread, then each rival's time divided by ours."""
    from rich.table import Table

    first = rows[0]
    table = Table(
        title=f"b={first.b} d={first.d} r={first.r} K={first.steps} {first.dtype}, median of {first.repeats}",
        caption=f"{first.hardware}, {first.threads} threads, torch {first.torch}; "
        "x: time of the rival / time of hamburger, above 1 where hamburger is faster",
    )
    for heading in ("ham", "mode"):
        table.add_column(heading)
    for heading in ("n", f"{OURS} ms", "IQR", *(f"{rival} x" for rival in RIVALS)):
        table.add_column(heading, justify="right")
    for ours in (row for row in rows if row.contender == OURS):
        rivals = {row.contender: row for row in rows if (row.ham, row.mode, row.n) == (ours.ham, ours.mode, ours.n)}
        ratios = [f"{rivals[name].ratio:.2f}" if name in rivals else "" for name in RIVALS]
        table.add_row(ours.ham, ours.mode, f"{ours.n:,}", f"{ours.ms:.1f}", f"{ours.ms_iqr:.1f}", *ratios)
    return table


def core_growth_table(rows: Sequence[CoreRow]) -> Table:
    """Return the fitted exponents p of time ~ n^p: one line per ham and mode, one column per contender."""
    from rich.table import Table

    names = (OURS, *RIVALS)
    table = Table(title="growth: p in time ~ n^p", caption="1 is linear in n, 2 quadratic")
    for heading in ("ham", "mode"):
        table.add_column(heading)
    for name in names:
        table.add_column(name, justify="right")
    for ham, mode in dict.fromkeys((row.ham, row.mode) for row in rows):
        ham_rows = [row for row in rows if (row.ham, row.mode) == (ham, mode)]
        table.add_row(
            ham, mode, *(_fitted_exponent(row for row in ham_rows if row.contender == name) for name in names)
        )
    return table


def _fitted_exponent(rows: Iterable[CoreRow]) -> str:
    points = [(row.n, row.ms) for row in rows]
    if len({n for n, _ in points}) < 2:
        return ""
    return f"{growth_exponent(*zip(*points, strict=True)):.2f}"
