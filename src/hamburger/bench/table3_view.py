"""Rows of `ham bench table3` as a table to read, what the paper prints beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hamburger.bench.paper import CHANNELS, MEBI, SIZE, TABLE3
from hamburger.bench.table3 import Row

if TYPE_CHECKING:
    from rich.table import Table


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, no exponent; a dash for what did not fit."""
    if value is None:
        return "-"
    if value >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if value >= 0.001 else f"{value:.1e}" if value else "0"


def spread(median: float | None, iqr: float | None) -> str:
    """The median and, after it, the distance between the quartiles."""
    return number(median) if iqr is None else f"{number(median)} ±{number(iqr, 2)}"


def table(rows: Sequence[Row]) -> Table:
    from rich.table import Table

    first = rows[0]
    shown = Table(
        title=f"b={first.batch} c={first.channels} {first.dtype} on {first.hardware}",
        caption=f"torch {first.torch}, {first.threads} threads; medians of up to {first.repeats} ± IQR. Parameters in "
        "units of 2^20, multiply-adds (MACs) of 10^9, peak MiB. In brackets: printed in the paper (TITAN Xp, float32)",
    )
    for heading in ("module", "n", "params", "MACs", "infer ms", "train ms", "infer MiB", "train MiB"):
        shown.add_column(heading, justify="left" if heading == "module" else "right", overflow="fold")
    for row in rows:
        printed = TABLE3.get(row.module) if (row.n, row.channels, row.batch) == (SIZE, CHANNELS, 1) else None

        def cell(text: str, field: str, printed: object = printed) -> str:
            return f"{text} [{getattr(printed, field):g}]" if printed is not None else text

        shown.add_row(
            row.module,
            f"{row.n:,}",
            cell(f"{row.params / MEBI:.2f}", "params"),
            cell(number(row.macs / 1e9), "macs"),
            cell(spread(row.infer_ms, row.infer_ms_iqr), "infer_ms"),
            cell(spread(row.train_ms, row.train_ms_iqr), "train_ms"),
            cell(number(row.infer_mb), "infer_mb"),
            cell(number(row.train_mb), "train_mb"),
        )
    return shown


def notes(rows: Sequence[Row]) -> list[str]:
    """What a cell cannot hold: why a figure differs from the printed one, or is not there."""
    return [f"{row.module}, n = {row.n:,}: {row.note}" for row in rows if row.note]
