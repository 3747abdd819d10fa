"""Rows of `ham compare` on classes of images -> the tables of docs."""

from __future__ import annotations

from collections.abc import Sequence

from hamburger.analysis.comparison import COLUMNS, Row, by_context, mean_of, ranked, scores_of, seeds_of, where
from hamburger.analysis.core_page import markdown_table


def compared(rows: Sequence[Row]) -> str:
    """Accuracy of every context over its seeds, the paired difference to none, and what it costs; best first."""
    if not rows:
        return "No rows yet."
    own = by_context(rows)
    lines = [
        [name, *cells, mean_of(own[name], "images_per_s", ",.0f"), mean_of(own[name], "peak_mb", ",.0f")]
        for name, cells in ranked(scores_of(rows, lambda row: 100 * row["accuracy"]), 2).items()
    ]
    first = rows[0]
    note = (
        f"Recipe `{first['recipe']}`, {first['backbone']}, {first['steps']} steps of {first['batch']} images, "
        f"precision {first['precision']}, accuracy of the last step in percent ({first['protocol']}) on "
        f"{first['images']:,} images of the validation split, seeds {seeds_of(rows)}; spread is the standard deviation "
        f"over seeds, differences are paired by seed. {where(rows)}"
    )
    return f"{markdown_table(['context', 'accuracy, %', *COLUMNS, 'images/s', 'peak MiB'], lines)}\n\n{note}"
