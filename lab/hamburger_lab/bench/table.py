"""Rows of a benchmark as tables to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hamburger_lab.bench.core import ATTENTION, AUTHORS, OURS, SKLEARN, CoreRow
from hamburger_lab.bench.growth import exponent

if TYPE_CHECKING:
    from rich.table import Table

RIVALS = (AUTHORS, SKLEARN, ATTENTION)


def times(rows: Sequence[CoreRow]) -> Table:
    """One line per ham, mode and n: our time and spread, then for each rival its time over ours."""
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
    for mine in (row for row in rows if row.contender == OURS):
        rivals = {row.contender: row for row in rows if (row.ham, row.mode, row.n) == (mine.ham, mine.mode, mine.n)}
        ratios = [f"{rivals[name].ratio:.2f}" if name in rivals else "" for name in RIVALS]
        table.add_row(mine.ham, mine.mode, f"{mine.n:,}", f"{mine.ms:.1f}", f"{mine.ms_iqr:.1f}", *ratios)
    return table


def growth(rows: Sequence[CoreRow]) -> Table:
    """The fitted exponent p of time ~ n^p, one line per ham and mode, one column per contender."""
    from rich.table import Table

    names = (OURS, *RIVALS)
    table = Table(title="growth: p in time ~ n^p", caption="1 is linear in n, 2 quadratic")
    for heading in ("ham", "mode"):
        table.add_column(heading)
    for name in names:
        table.add_column(name, justify="right")
    for ham, mode in dict.fromkeys((row.ham, row.mode) for row in rows):
        mine = [row for row in rows if (row.ham, row.mode) == (ham, mode)]
        table.add_row(ham, mode, *(_fitted(row for row in mine if row.contender == name) for name in names))
    return table


def _fitted(rows: Iterable[CoreRow]) -> str:
    points = [(row.n, row.ms) for row in rows]
    if len({n for n, _ in points}) < 2:
        return ""
    return f"{exponent(*zip(*points, strict=True)):.2f}"
