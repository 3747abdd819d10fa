"""Tables of docs/detection-results.md, from rows of `ham compare` and `ham bench detect`."""

from __future__ import annotations

from collections.abc import Sequence

from hamburger.report.study import summarise
from hamburger_lab.markdown import markdown_table
from hamburger_lab.pages.comparison import (
    COLUMNS,
    describe_environment,
    format_field,
    format_field_mean,
    ranked_cells,
    rows_by_context,
    scores_by_context,
)
from hamburger_lab.rows import Row


def detection_table(rows: Sequence[Row]) -> str:
    """Return mAP of every context over its seeds, paired difference to none, speed and memory; best first."""
    if not rows:
        return "No rows yet."
    by_context = rows_by_context(rows)
    lines = [
        [
            name,
            *cells,
            f"{summarise([100 * row['box_map'] for row in by_context[name]]).mean:.2f}",
            f"{summarise([100 * row['mask']['map_50'] for row in by_context[name]]).mean:.1f}",
            format_field_mean(by_context[name], "images_per_s", ".0f"),
            format_field_mean(by_context[name], "peak_mb", ",.0f"),
            str(len(by_context[name])),
        ]
        for name, cells in ranked_cells(scores_by_context(rows, lambda row: 100 * row["mask_map"]), 2).items()
    ]
    header = ["context", "mask mAP, %", *COLUMNS, "box mAP, %", "mask AP at 0.5, %", "images/s", "peak MiB", "seeds"]
    first = rows[0]
    note = (
        f"Recipe `{first['recipe']}`, {first['backbone']}, context after {_listed(rows, 'after')}, {first['steps']} "
        f"steps of {first['batch']} images, precision {first['precision']}, scores of the last step "
        f"({first['protocol']}) on {first['images']} images of the validation split; spread is the standard deviation "
        f"over seeds, differences are paired by seed. {describe_environment(rows)}"
    )
    return f"{markdown_table(header, lines)}\n\n{note}"


def detection_size_table(rows: Sequence[Row]) -> str:
    """Return mean AP of boxes and masks of every context by object size, and the number of seeds."""
    if not rows:
        return "No rows yet."
    kinds = [(kind, size) for kind in ("box", "mask") for size in ("small", "medium", "large")]
    lines = []
    for name, group in rows_by_context(rows).items():
        scores = [[row[kind][f"map_{size}"] for row in group] for kind, size in kinds]
        means = ["" if None in each else f"{100 * summarise(each).mean:.1f}" for each in scores]
        lines.append([name, *means, str(len(group))])
    return markdown_table(["context", *(f"{kind}, {size}" for kind, size in kinds), "seeds"], lines)


def detection_growth_table(rows: Sequence[Row]) -> str:
    """Return memory and time of a training step: one line per context, one column per image size."""
    if not rows:
        return "No rows yet."
    sizes = sorted({row["size"] for row in rows})
    by_key = {(row["context"], row["size"]): row for row in rows}
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    lines = []
    for context in contexts:
        context_rows = [by_key.get((context, size)) for size in sizes]
        lines.append(
            [
                context,
                *("" if row is None else format_field(row, "peak_mb", ",.0f") for row in context_rows),
                *("" if row is None else format_field(row, "train_ms", ".0f") for row in context_rows),
            ]
        )
    positions = {row["size"]: row["n"] for row in rows if row["n"] is not None}
    header = ["context", *(f"{size} px (n = {positions.get(size, 0):,}), MiB" for size in sizes)]
    header += [f"{size} px, ms" for size in sizes]
    first = rows[0]
    note = (
        f"Peak memory, and the median of {first['repeats']} rounds, of a training step of Mask R-CNN with "
        f"{first['backbone']} and the context after {first['after']}, {first['batch']} images, {first['dtype']}, TF32 "
        f"{first['tf32']}. {describe_environment(rows)}"
    )
    return f"{markdown_table(header, lines)}\n\n{note}"


def _listed(rows: Sequence[Row], field: str) -> str:
    return ", ".join(dict.fromkeys(str(row[field]) for row in rows if row[field] is not None)) or "nothing"
