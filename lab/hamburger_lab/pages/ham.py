"""Rows of `ham bench ham` -> the hams alone against their floor; of `ham bench profile` -> the kernels of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hamburger_lab.bench.profile import lines as kernel_lines
from hamburger_lab.pages.core import markdown_table, pick

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


def profile(rows: Sequence[Row]) -> str:
    """Each kernel by n in both modes."""
    columns = sorted({(row["mode"], row["n"]) for row in rows})
    first = rows[0]
    said = (
        f"{first['hardware']}, {first['dtype']}, b = {first['batch']}, c = {first['channels']}, torch "
        f"{first['torch']}, means of {first['calls']} calls on inputs in turn, seed {first['seed']}, commit "
        f"{first['commit']}. The clock ran without the profiler: the median of 5 blocks of {first['calls']} calls."
    )
    header = ["module", "kernel", *(f"{mode}, n = {n:,}" for mode, n in columns)]
    return f"{markdown_table(header, list(kernel_lines(rows, columns)))}\n\n{said}"
