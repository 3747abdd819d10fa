"""Rows of `ham bench table3` -> the tables of its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hamburger.analysis.core_page import markdown_table, pick
from hamburger.bench.case import LEAST
from hamburger.bench.paper import SIZE, TABLE3
from hamburger.bench.table3_view import LEAST_MS, calls, grown, macs, number, params
from hamburger.bench.variants import COMPILED

Row = dict[str, Any]
FIELDS = {
    "infer_ms": "Inference, ms",
    "train_ms": "Forward and backward, ms",
    "infer_mb": "Inference, peak MiB",
    "train_mb": "Forward and backward, peak MiB",
}


def protocol(rows: Sequence[Row]) -> str:
    first = rows[0]
    commits = ", ".join(sorted({str(row["commit"]) for row in rows}))
    return (
        f"{first['hardware']}, {first['dtype']}, b = {first['batch']}, c = {first['channels']}, "
        f"torch {first['torch']}, {first['threads']} CPU threads, medians of {calls(rows)} on inputs "
        f"in turn, seed {first['seed']}, commit {commits}."
    )


def cell(row: Row, field: str) -> str:
    """A figure to read, a star at a time that few samples stand behind."""
    return number(row[field]) + ("*" if few(row, field) else "")


def few(row: Row, field: str) -> bool:
    mode, _, unit = field.partition("_")
    count = row.get(f"{mode}_repeats")
    return unit == "ms" and count is not None and count < LEAST


def caveats(rows: Sequence[Row]) -> str:
    """What to know of the rows, after a space; nothing of rows that were measured as they are now."""
    said = []
    if not any(row.get("infer_block") for row in rows):
        said.append(" Of the older protocol: every call waited for and timed by itself.")
    if any(few(row, field) for row in rows for field in FIELDS):
        said.append(f" A star: the median of fewer than {LEAST} calls.")
    return "".join(said)


def eager(rows: Sequence[Row]) -> list[Row]:
    """Compiled modules have a table of their own: they were run at few sizes."""
    return [row for row in rows if not row["module"].endswith(COMPILED)]


def modules(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["module"] for row in rows))


def against_paper(rows: Sequence[Row], dtype: str) -> str:
    """Table 3 at its own size: ours, and in brackets what the paper prints."""
    rows = eager(pick(rows, n=SIZE, dtype=dtype))
    lines = []
    for row in rows:
        printed = TABLE3.get(row["module"])

        def beside(text: str, field: str, printed: object = printed) -> str:
            return f"{text} ({getattr(printed, field):g})" if printed is not None else text

        lines.append(
            [
                row["module"],
                beside(params(row["params"]), "params"),
                beside(macs(row["macs"]), "macs"),
                *(beside(cell(row, field), field) for field in ("train_mb", "infer_mb", "train_ms", "infer_ms")),
            ]
        )
    header = ["module", "params, 2^20", "MACs, 10^9", "train MiB", "infer MiB", "train ms", "infer ms"]
    notes = [f"- {row['module']}: {row['note']}." for row in rows if "printed" in row["note"]]
    return "\n".join([markdown_table(header, lines), "", protocol(rows) + caveats(rows), "", *notes])


def over_sizes(rows: Sequence[Row], dtype: str) -> str:
    """Each measure by n, its exponent, and between which sizes."""
    compiled = under_compile(rows, dtype)
    rows = eager(pick(rows, dtype=dtype))
    sizes = sorted({row["n"] for row in rows})
    parts = [
        f"{protocol(rows)}{caveats(rows)} p is the exponent between the sizes beside it: of times the two largest at "
        f"which a call takes more than {LEAST_MS:g} ms; with a ~ where there are no two such."
    ]
    for field, title in FIELDS.items():
        lines = []
        for module in modules(rows):
            found = {row["n"]: row for row in pick(rows, module=module)}
            shown = [cell(found[n], field) if n in found else number(None) for n in sizes]
            lines.append([module, *shown, *grown({n: row[field] for n, row in found.items()}, field)])
        parts.append(f"### {title}")
        parts.append(markdown_table(["module", *(f"{n:,}" for n in sizes), "p", "between"], lines))
    return "\n\n".join([*parts, *compiled])


def under_compile(rows: Sequence[Row], dtype: str) -> list[str]:
    """A title and a table of the modules that were also run compiled, beside themselves eager; nothing without any."""
    rows = pick(rows, dtype=dtype)
    lines = []
    for row in rows:
        if row["module"].endswith(COMPILED):
            name = row["module"].removesuffix(COMPILED)
            plain = next(iter(pick(rows, module=name, n=row["n"])), {})
            pairs = [number(found.get(field)) for field in ("infer_ms", "train_ms") for found in (plain, row)]
            lines.append([name, f"{row['n']:,}", *pairs])
    if not lines:
        return []
    header = ["module", "n", "infer ms, eager", "compiled", "train ms, eager", "compiled"]
    return ["### Under torch.compile", markdown_table(header, lines)]


def headline(rows: Sequence[Row]) -> str:
    """The ham against the attention and the linear rivals that a person would use, bfloat16, by n."""
    rows = pick(rows, dtype="bfloat16")
    sizes = sorted({row["n"] for row in rows})
    lines = []
    for module in ("nmf", "authors-nmf", "sa-flash", "a2", "efficient", "ema"):
        for field, label in (("infer_ms", "inference"), ("train_ms", "forward and backward")):
            found = {row["n"]: row[field] for row in pick(rows, module=module)}
            lines.append([module, label, *(number(found.get(n)) for n in sizes)])
    return f"{markdown_table(['module', 'ms', *(f'n = {n:,}' for n in sizes)], lines)}\n\n{protocol(rows)}"
