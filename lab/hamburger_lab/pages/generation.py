"""Tables of docs/gan-results.md, from rows of `ham gan grid` and `ham bench gan`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hamburger_lab.markdown import markdown_table
from hamburger_lab.pages.comparison import (
    COLUMNS,
    format_seeds,
    list_commits,
    ranked_cells,
    rows_by_context,
    scores_by_context,
)
from hamburger_lab.paper import STEPS_PER_SECOND, added_seconds
from hamburger_lab.rows import Row


def gan_distance_table(rows: Sequence[Row]) -> str:
    """Return the distance of every context over its seeds, and its paired difference to none; best first."""
    if not rows:
        return "No rows yet."
    first = rows[0]
    mixed = [name for name in ("extractor", "steps", "batch", "data_sha256") if len({str(r[name]) for r in rows}) > 1]
    if mixed:
        raise ValueError(f"gan page: the rows differ in {', '.join(mixed)}; one table needs rows of one experiment")
    by_context, scores = rows_by_context(rows), scores_by_context(rows, lambda row: row["frechet"])
    lines = [
        [
            context,
            *cells,
            format_seeds(scores[context], 2),
            f"{1000 * _mean(by_context[context], 'kid'):.2f}",
            f"{_mean(by_context[context], 'precision'):.3f}",
            f"{_mean(by_context[context], 'recall'):.3f}",
            _milliseconds(by_context[context]),
            f"{max(row['peak_mb'] for row in by_context[context]):,.0f}",
        ]
        for context, cells in ranked_cells(scores, 2, lower_is_better=True).items()
    ]
    header = [
        *("context", first["name"], *COLUMNS, "each seed", "kernel x 1000"),
        *("precision", "recall", "ms / step", "peak MiB"),
    ]
    note = (
        f"Lower is better for the two distances. {first['hardware']}, torch {first['torch']}, {first['steps']:,} steps "
        f"of {first['batch']}, precision {first['dtype']}; {first['fake_images']:,} generated against "
        f"{first['real_images']:,} real images, precision and recall of {first['compared_images']:,} each; by "
        f"{first['extractor']}; "
        f"commit {list_commits(rows)}. Times are medians over seeds, with {first['jobs']} runs at once."
    )
    return f"{markdown_table(header, lines)}\n\n{note}"


def gan_speed_table(rows: Sequence[Row]) -> str:
    """Return times of whole steps, of what a context adds, and of modules alone, relative to YLG as published."""
    if not rows:
        return "No rows yet."
    first = rows[0]
    fields = ("step_ms", "step_of_ylg", "added_ms", "added_of_ylg", "generator_ms", "discriminator_ms", "module_of_ylg")
    lines = [[row["context"], *(_format(row[name]) for name in fields), _format(row["peak_mb"], 0)] for row in rows]
    header = [
        *("context", "step, ms", "/ ylg", "added to the step, ms", "/ ylg"),
        *("module in G, ms", "in D, ms", "both / ylg", "peak MiB"),
    ]
    note = (
        f"{first['hardware']}, torch {first['torch']}, {first['resolution']} x {first['resolution']}, batch "
        f"{first['batch']}, {first['dtype']}, hams by {first['backend']}"
        f"{', replayed as CUDA graphs' if first.get('graph') else ''}; medians of {first['repeats']} shuffled "
        f"rounds, commit {first['commit']} (`ham bench gan`). The first `/ ylg` is the median over rounds "
        f"of the ratio in each round; the others are ratios of medians. "
        f"The paper's HamGAN, on TPUs: a step "
        f"{STEPS_PER_SECOND['ylg'] / STEPS_PER_SECOND['hamgan']:.2f} of YLG's, what it adds "
        f"{added_seconds('hamgan') / added_seconds('ylg'):.2f}."
    )
    return f"{markdown_table(header, lines)}\n\n{note}"


def _milliseconds(rows: Sequence[Row]) -> str:
    """Return the median over seeds: runs that ended after the others, or were resumed, are much faster."""
    times = [1000 * row["seconds_per_step"] for row in rows if row["seconds_per_step"]]
    return f"{statistics.median(times):.1f}" if times else ""


def _mean(rows: Sequence[Row], name: str) -> float:
    return statistics.mean(row[name] for row in rows)


def _format(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
