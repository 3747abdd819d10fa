"""Rows of `ham bench table3` as a table to read, what the paper prints beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hamburger.bench.growth import at_the_end
from hamburger.bench.paper import CHANNELS, MEBI, SIZE, TABLE3
from hamburger.bench.table3 import Row

if TYPE_CHECKING:
    from rich.table import Table


FIGURES = {"infer_ms": "infer ms", "train_ms": "train ms", "infer_mb": "infer MiB", "train_mb": "train MiB"}


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


def params(count: int | None) -> str:
    return "-" if count is None else f"{count / MEBI:.2f}"


def macs(count: int | None) -> str:
    return "-" if count is None else number(count / 1e9)


def calls(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many timed calls stand behind the medians, `5 to 200`; files of earlier versions hold the most alone."""
    counts = [row.get(f"{mode}_repeats") for row in rows for mode in ("infer", "train")]
    found = sorted({count for count in counts if count is not None})
    if not found:
        return f"up to {rows[0]['repeats']}" if "repeats" in rows[0] else "no"
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def table(rows: Sequence[Row]) -> Table:
    """Rows of one dtype."""
    from rich.table import Table

    first = rows[0]
    shown = Table(
        title=f"b={first.batch} c={first.channels} {first.dtype} on {first.hardware}",
        caption=f"torch {first.torch}, {first.threads} threads; medians of {calls([asdict(row) for row in rows])} "
        "calls ± IQR. Parameters in units of 2^20, multiply-adds (MACs) of 10^9, peak MiB. In brackets: printed in the "
        "paper (TITAN Xp, float32)",
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
            cell(params(row.params), "params"),
            cell(macs(row.macs), "macs"),
            cell(spread(row.infer_ms, row.infer_ms_iqr), "infer_ms"),
            cell(spread(row.train_ms, row.train_ms_iqr), "train_ms"),
            cell(number(row.infer_mb), "infer_mb"),
            cell(number(row.train_mb), "train_mb"),
        )
    return shown


def growth(rows: Sequence[Row]) -> Table:
    """p of time ~ n^p and memory ~ n^p between the two largest sizes that were run."""
    from rich.table import Table

    shown = Table(title="growth: p in ~ n^p, between the two largest n", caption="1 is linear in n, 2 quadratic")
    for heading in ("module", *FIGURES.values()):
        shown.add_column(heading, justify="left" if heading == "module" else "right")
    for module in dict.fromkeys(row.module for row in rows):
        mine = [row for row in rows if row.module == module]
        shown.add_row(module, *(at_the_end({row.n: getattr(row, field) for row in mine}) for field in FIGURES))
    return shown


def notes(rows: Sequence[Row]) -> list[str]:
    """What a cell cannot hold: why a figure differs from the printed one, or is not there."""
    return [f"{row.module}, n = {row.n:,}, {row.dtype}: {row.note}" for row in rows if row.note]
