"""Tables of the hams alone: `ham bench core`, `ham bench ham` and `ham bench profile`."""

from __future__ import annotations

from collections.abc import Sequence

from hamburger_lab.bench.common import growth_exponent
from hamburger_lab.bench.profile import kernel_lines
from hamburger_lab.markdown import markdown_table
from hamburger_lab.rows import Row, select_rows

NAMES = {"authors-eager": "the authors' way, eager", "sklearn": "scikit-learn NMF-MU", "sdpa": "self-attention (SDPA)"}


def core_protocol(rows: Sequence[Row]) -> str:
    r = rows[0]
    return (
        f"{r['hardware']}, {r['threads']} threads, {r['dtype']}, torch {r['torch']}, b = {r['b']}, d = {r['d']}, "
        f"r = {r['r']}, K = {r['steps']}, median of {r['repeats']} interleaved rounds on fresh inputs, "
        f"seed {r['seed']}, commit {r['commit']}"
    )


def core_speed_table(rows: Sequence[Row]) -> str:
    """Inference: our time, and every rival's over ours, at the ends and the middle of the range."""
    sizes = sorted({row["n"] for row in rows})
    sizes = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    lines = []
    for ham in dict.fromkeys(row["ham"] for row in rows):
        for n in sizes:
            by_contender = {row["contender"]: row for row in select_rows(rows, ham=ham, n=n, mode="infer")}
            ratios = [f"{by_contender[name]['ratio']:.2f}" if name in by_contender else "" for name in NAMES]
            ours = by_contender["hamburger"]
            lines.append([ham, f"{n:,}", f"{ours['ms']:.1f} ({ours['ms_iqr']:.1f})", *ratios])
    header = ["ham", "n", "ours, ms (IQR)", *NAMES.values()]
    note = "Inference of the ham alone; the columns of rivals hold their time over ours, above 1 where ours is faster."
    return f"{markdown_table(header, lines)}\n\n{note} {core_protocol(rows)} (`ham bench core`)."


def core_table(rows: Sequence[Row]) -> str:
    """Everything that was measured, and how it grows."""
    lines = [
        [
            row["ham"],
            row["mode"],
            row["contender"],
            f"{row['n']:,}",
            f"{row['ms']:.2f}",
            f"{row['ms_iqr']:.2f}",
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    grown = []
    for ham, mode, contender in dict.fromkeys((row["ham"], row["mode"], row["contender"]) for row in rows):
        mine = select_rows(rows, ham=ham, mode=mode, contender=contender)
        grown.append([ham, mode, contender, f"{growth_exponent([r['n'] for r in mine], [r['ms'] for r in mine]):.2f}"])
    return "\n\n".join(
        [
            core_protocol(rows) + ".",
            "### Growth: p in time ~ n^p",
            markdown_table(["ham", "mode", "contender", "p"], grown),
            "### All rows",
            markdown_table(["ham", "mode", "contender", "n", "ms", "IQR", "over ours"], lines),
        ]
    )


def roofline_table(rows: Sequence[Row]) -> str:
    """Each ham and backend by n: the time, and which fraction of the floor it reaches."""
    sizes = sorted({row["n"] for row in rows})
    kinds = dict.fromkeys((row["ham"], row["mode"], row["backend"]) for row in rows)
    lines = []
    for ham, mode, backend in kinds:
        by_size = {row["n"]: row for row in select_rows(rows, ham=ham, mode=mode, backend=backend)}
        shown = [
            f"{by_size[n]['ms']:.3f} ({by_size[n]['fraction_of_floor']:.2f})" if n in by_size else "" for n in sizes
        ]
        lines.append([ham, mode, backend, *shown])
    first = rows[0]
    note = (
        f"{first['hardware']}, {first['dtype']}, b = {first['b']}, d = {first['d']}, r = {first['r']}, "
        f"K = {first['steps']}, torch {first['torch']}, medians of {first['repeats']} samples, seed {first['seed']}, "
        f"commit {first['commit']}. The floor by products at {first['tflops']:.0f} TFLOP/s and copies at "
        f"{first['gbs']:.0f} GB/s, measured in the same run."
    )
    header = ["ham", "mode", "backend", *(f"n = {n:,}" for n in sizes)]
    return f"{markdown_table(header, lines)}\n\n{note}"


def profile_markdown(rows: Sequence[Row]) -> str:
    """Each kernel by n in both modes."""
    columns = sorted({(row["mode"], row["n"]) for row in rows})
    first = rows[0]
    note = (
        f"{first['hardware']}, {first['dtype']}, b = {first['batch']}, c = {first['channels']}, torch "
        f"{first['torch']}, means of {first['calls']} calls on inputs in turn, seed {first['seed']}, commit "
        f"{first['commit']}. The clock ran without the profiler: the median of 5 blocks of {first['calls']} calls."
    )
    header = ["module", "kernel", *(f"{mode}, n = {n:,}" for mode, n in columns)]
    return f"{markdown_table(header, list(kernel_lines(rows, columns)))}\n\n{note}"
