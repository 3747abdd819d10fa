"""Rows of `ham bench core` -> the tables of README and docs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hamburger_lab.bench.growth import exponent

Row = dict[str, Any]
NAMES = {"authors-eager": "the authors' way, eager", "sklearn": "scikit-learn NMF-MU", "sdpa": "self-attention (SDPA)"}


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def protocol(rows: Sequence[Row]) -> str:
    r = rows[0]
    return (
        f"{r['hardware']}, {r['threads']} threads, {r['dtype']}, torch {r['torch']}, b = {r['b']}, d = {r['d']}, "
        f"r = {r['r']}, K = {r['steps']}, median of {r['repeats']} interleaved rounds on fresh inputs, "
        f"seed {r['seed']}, commit {r['commit']}"
    )


def pick(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def speed(rows: Sequence[Row]) -> str:
    """Inference: our time, and every rival's over ours, at the ends and the middle of the range."""
    sizes = sorted({row["n"] for row in rows})
    sizes = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    lines = []
    for ham in dict.fromkeys(row["ham"] for row in rows):
        for n in sizes:
            found = {row["contender"]: row for row in pick(rows, ham=ham, n=n, mode="infer")}
            ratios = [f"{found[name]['ratio']:.2f}" if name in found else "" for name in NAMES]
            ours = found["hamburger"]
            lines.append([ham, f"{n:,}", f"{ours['ms']:.1f} ({ours['ms_iqr']:.1f})", *ratios])
    header = ["ham", "n", "ours, ms (IQR)", *NAMES.values()]
    note = "Inference of the ham alone; the columns of rivals hold their time over ours, above 1 where ours is faster."
    return f"{markdown_table(header, lines)}\n\n{note} {protocol(rows)} (`ham bench core`)."


def table(rows: Sequence[Row]) -> str:
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
        mine = pick(rows, ham=ham, mode=mode, contender=contender)
        grown.append([ham, mode, contender, f"{exponent([r['n'] for r in mine], [r['ms'] for r in mine]):.2f}"])
    return "\n\n".join(
        [
            protocol(rows) + ".",
            "### Growth: p in time ~ n^p",
            markdown_table(["ham", "mode", "contender", "p"], grown),
            "### All rows",
            markdown_table(["ham", "mode", "contender", "n", "ms", "IQR", "over ours"], lines),
        ]
    )
