"""Tables of `ham bench table3` for the terminal, with the paper's numbers in brackets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hamburger_lab.bench.common import format_last_exponent
from hamburger_lab.bench.table3 import Table3Row
from hamburger_lab.paper import CHANNELS, MEBI, SIZE, TABLE3

if TYPE_CHECKING:
    from rich.table import Table


LEAST_MS = 5.0  # shorter calls may be launch-bound, and then do not grow with n
FIGURES = {"infer_ms": "infer ms", "train_ms": "train ms", "infer_mb": "infer MiB", "train_mb": "train MiB"}


def format_number(value: float | None, digits: int = 3) -> str:
    """Return three significant digits without an exponent; a dash for None."""
    if value is None:
        return "-"
    if value >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if value >= 0.001 else f"{value:.1e}" if value else "0"


def format_median(median: float | None, iqr: float | None) -> str:
    """Return the median and the interquartile range."""
    return format_number(median) if iqr is None else f"{format_number(median)} ±{format_number(iqr, 2)}"


def format_params(count: int | None) -> str:
    return "-" if count is None else f"{count / MEBI:.2f}"


def format_macs(count: int | None) -> str:
    return "-" if count is None else format_number(count / 1e9)


def describe_samples(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return, for example, `5 to 20 samples of 1 to 100 calls`, or `1 to 200 calls` for older files."""
    samples, blocks = (_range(rows, field) for field in ("repeats", "block"))
    if blocks:
        return f"{samples} samples of {blocks} calls"
    if samples:
        return f"{samples} calls"
    # the oldest files have only the maximum
    return f"up to {rows[0]['repeats']} calls" if "repeats" in rows[0] else "no calls"


def _range(rows: Sequence[Mapping[str, Any]], field: str) -> str:
    counts = [row.get(f"{mode}_{field}") for row in rows for mode in ("infer", "train")]
    counted = sorted({count for count in counts if count is not None})
    return " to ".join(map(str, dict.fromkeys((counted[0], counted[-1])))) if counted else ""


def describe_growth(figures: Mapping[int, float | None], field: str) -> tuple[str, str]:
    """Return the exponent p of ~ n^p and the two sizes it is computed from; both empty below two sizes.

    Times use the two largest sizes at which a call takes more than LEAST_MS. If there are no two such sizes, they use
    the two largest, and p gets a ~.
    """
    measured, work = _measured_sizes(figures, field)
    sizes = growth_sizes(figures, field)
    if not sizes:
        return "", ""
    p = format_last_exponent({n: measured[n] for n in sizes})
    return ("" if len(work) > 1 else "~") + p, " to ".join(f"{n:,}" for n in sizes)


def growth_sizes(figures: Mapping[int, float | None], field: str) -> list[int]:
    """Return the two sizes that the exponent is computed from; none below two sizes."""
    measured, work = _measured_sizes(figures, field)
    sizes = list(work if len(work) > 1 else measured)[-2:]
    return sizes if len(sizes) == 2 else []


def _measured_sizes(figures: Mapping[int, float | None], field: str) -> tuple[dict[int, float], dict[int, float]]:
    """Return the measured figures by size, and those that are long enough to show growth."""
    measured = {n: figure for n, figure in sorted(figures.items()) if figure}
    work = {n: figure for n, figure in measured.items() if figure > LEAST_MS} if field.endswith("_ms") else measured
    return measured, work


def table3_table(rows: Sequence[Table3Row]) -> Table:
    """Return the table of the rows of one dtype."""
    from rich.table import Table

    first = rows[0]
    table = Table(
        title=f"b={first.batch} c={first.channels} {first.dtype} on {first.hardware}",
        caption=f"torch {first.torch}, {first.threads} threads; "
        f"medians of {describe_samples([asdict(row) for row in rows])} "
        "± IQR. Parameters in units of 2^20, multiply-adds (MACs) of 10^9, peak MiB. In brackets: printed in the "
        "paper (TITAN Xp, float32)",
    )
    for heading in ("module", "n", "params", "MACs", "infer ms", "train ms", "infer MiB", "train MiB"):
        table.add_column(heading, justify="left" if heading == "module" else "right", overflow="fold")
    for row in rows:
        printed = TABLE3.get(row.module) if (row.n, row.channels, row.batch) == (SIZE, CHANNELS, 1) else None

        def cell(text: str, field: str, printed: object = printed) -> str:
            return f"{text} [{getattr(printed, field):g}]" if printed is not None else text

        table.add_row(
            row.module,
            f"{row.n:,}",
            cell(format_params(row.params), "params"),
            cell(format_macs(row.macs), "macs"),
            cell(format_median(row.infer_ms, row.infer_ms_iqr), "infer_ms"),
            cell(format_median(row.train_ms, row.train_ms_iqr), "train_ms"),
            cell(format_number(row.infer_mb), "infer_mb"),
            cell(format_number(row.train_mb), "train_mb"),
        )
    return table


def table3_growth_table(rows: Sequence[Table3Row]) -> Table:
    """Return the exponents p of time ~ n^p and memory ~ n^p, with the sizes they are computed from."""
    from rich.table import Table

    table = Table(
        title="growth: p in ~ n^p (between these n)",
        caption=f"1 is linear in n, 2 quadratic; ~: one of the calls, of {LEAST_MS:g} ms or less, may be launch-bound",
    )
    for heading in ("module", *FIGURES.values()):
        table.add_column(heading, justify="left" if heading == "module" else "right")
    for module in dict.fromkeys(row.module for row in rows):
        mine = [row for row in rows if row.module == module]
        exponents = (describe_growth({row.n: getattr(row, field) for row in mine}, field) for field in FIGURES)
        table.add_row(module, *(f"{p} ({sizes})" if p else "" for p, sizes in exponents))
    return table


def row_notes(rows: Sequence[Table3Row]) -> list[str]:
    """Return notes on figures that are missing or differ from the printed ones."""
    return [f"{row.module}, n = {row.n:,}, {row.dtype}: {row.note}" for row in rows if row.note]
