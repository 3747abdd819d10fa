"""Rows of `ham bench ham` -> the table of the hams alone against their floor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hamburger.analysis.core_page import markdown_table, pick

Row = dict[str, Any]


def floors(rows: Sequence[Row]) -> str:
    """Each ham and backend by n: the time, and which fraction of the floor it reaches."""
    sizes = sorted({row["n"] for row in rows})
    kinds = dict.fromkeys((row["ham"], row["mode"], row["backend"]) for row in rows)
    lines = []
    for ham, mode, backend in kinds:
        found = {row["n"]: row for row in pick(rows, ham=ham, mode=mode, backend=backend)}
        shown = [f"{found[n]['ms']:.3f} ({found[n]['fraction_of_floor']:.2f})" if n in found else "" for n in sizes]
        lines.append([ham, mode, backend, *shown])
    first = rows[0]
    said = (
        f"{first['hardware']}, {first['dtype']}, b = {first['b']}, d = {first['d']}, r = {first['r']}, "
        f"K = {first['steps']}, torch {first['torch']}, medians of {first['repeats']} samples, seed {first['seed']}, "
        f"commit {first['commit']}. The floor by products at {first['tflops']:.0f} TFLOP/s and copies at "
        f"{first['gbs']:.0f} GB/s, measured in the same run."
    )
    header = ["ham", "mode", "backend", *(f"n = {n:,}" for n in sizes)]
    return f"{markdown_table(header, lines)}\n\n{said}"
