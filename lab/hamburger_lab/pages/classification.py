"""Tables of docs/classification-results.md, from rows of `ham compare` and `ham bench classes`."""

from __future__ import annotations

from collections.abc import Sequence

from hamburger_lab.markdown import markdown_table
from hamburger_lab.pages.comparison import (
    COLUMNS,
    describe_environment,
    format_field,
    format_field_mean,
    list_seeds,
    ranked_cells,
    rows_by_context,
    scores_by_context,
)
from hamburger_lab.rows import Row

COSTS = (("ratio", ".2f"), ("images_per_s", ",.0f"), ("peak_mb", ",.0f"))


def classification_table(rows: Sequence[Row]) -> str:
    """Return accuracy of every context over its seeds, paired difference to none, speed and memory; best first."""
    if not rows:
        return "No rows yet."
    by_context = rows_by_context(rows)
    lines = [
        [
            name,
            *cells,
            format_field_mean(by_context[name], "images_per_s", ",.0f"),
            format_field_mean(by_context[name], "peak_mb", ",.0f"),
        ]
        for name, cells in ranked_cells(scores_by_context(rows, lambda row: 100 * row["accuracy"]), 2).items()
    ]
    first = rows[0]
    note = (
        f"Recipe `{first['recipe']}`, {first['backbone']}, {first['steps']} steps of {first['batch']} images, "
        f"precision {first['precision']}, accuracy of the last step in percent ({first['protocol']}) on "
        f"{first['images']:,} images of the validation split, seeds {list_seeds(rows)}; spread is the standard "
        f"deviation over seeds, differences are paired by seed. {describe_environment(rows)}"
    )
    return f"{markdown_table(['context', 'accuracy, %', *COLUMNS, 'images/s', 'peak MiB'], lines)}\n\n{note}"


def classifier_speed_table(rows: Sequence[Row]) -> str:
    """Return time and memory of a training step of a classifier with each context, by image size."""
    if not rows:
        return "No rows yet."
    lines = [
        [
            row["context"],
            f"{row['size']} px" + ("" if row["n"] is None else f" (n = {row['n']:,})"),
            f"{row['params'] / 1e6:.2f}",
            format_field(row, "train_ms", ".2f")
            + ("" if row["train_ms_iqr"] is None else f" ± {row['train_ms_iqr']:.2f}"),
            *("" if row[field] is None else format(row[field], form) for field, form in COSTS),
        ]
        for row in sorted(rows, key=lambda row: row["size"])  # stable: rows of one size keep their order
    ]
    first = rows[0]
    header = ["context", "image", "parameters, 10^6", "ms", f"ratio to {first['ratio_to']}", "images/s", "peak MiB"]
    note = (
        f"Forward, backward and SGD step of {first['backbone']} (stem {first['stem']}) with the context after "
        f"{first['after']}, {first['batch']} images, {first['num_classes']} classes, {first['dtype']}, channels last, "
        f"TF32 {first['tf32']}; medians of {first['repeats']} rounds ± IQR, networks in shuffled order; "
        f"ratio: median over rounds of the time divided by that of {first['ratio_to']}. {describe_environment(rows)}"
    )
    return f"{markdown_table(header, lines)}\n\n{note}"
