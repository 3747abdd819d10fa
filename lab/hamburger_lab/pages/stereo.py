"""Tables of docs/stereo-results.md, from rows of `ham compare` and `ham eval`."""

from __future__ import annotations

from collections.abc import Sequence

from hamburger.report.study import summarise
from hamburger.stereo.task import STEREO
from hamburger_lab.markdown import markdown_table
from hamburger_lab.pages.comparison import (
    COLUMNS,
    describe_environment,
    format_field_mean,
    list_seeds,
    ranked_cells,
    rows_by_context,
    scores_by_context,
)
from hamburger_lab.rows import Row


def stereo_table(rows: Sequence[Row]) -> str:
    """Return errors of every context over its seeds, paired difference to none, speed and memory; best first."""
    if not rows:
        return "No rows yet."
    by_context = rows_by_context(rows)
    lines = [
        [
            name,
            *cells,
            *(_share(by_context[name], field) for field in ("over_1", "over_3")),
            *(format_field_mean(by_context[name], field, ".3f") for field in ("epe_pair_mean", "epe_seen")),
            format_field_mean(by_context[name], "images_per_s", ".0f"),
            format_field_mean(by_context[name], "peak_mb", ",.0f"),
        ]
        for name, cells in ranked_cells(
            scores_by_context(rows, lambda row: row["epe"]), 3, lower_is_better=True
        ).items()
    ]
    header = ["context", "EPE, px", *COLUMNS, "> 1 px, %", "> 3 px, %"]
    header += [_heading(rows, "epe_pair_mean"), _heading(rows, "epe_seen"), "images/s", "peak MiB"]
    first = rows[0]
    note = (
        f"Recipe `{first['recipe']}`, {first['steps']} steps of {first['batch']} pairs, precision "
        f"{first['precision']}, errors of the last step ({first['protocol']}), {first['images']} pairs of the "
        f"validation split, seeds {list_seeds(rows)}; spread is the standard deviation over seeds, differences are "
        f"paired by seed, below 0 is better. {describe_environment(rows)}"
    )
    return f"{markdown_table(header, lines)}\n\n{note}"


def real_pairs_table(rows: Sequence[Row]) -> str:
    """Return the error on each real pair, mean over seeds; one table per image size."""
    sizes: dict[int, list[Row]] = {}
    for row in rows:
        sizes.setdefault(row["shrink"], []).append(row)
    return "\n\n".join(_one_size_table(sizes[shrink]) for shrink in sorted(sizes)) or "No rows yet."


def _one_size_table(rows: Sequence[Row]) -> str:
    pairs, by_context = list(rows[0]["per_pair"]), rows_by_context(rows)
    lines = [
        [
            name,
            *(f"{summarise([row['per_pair'][pair] for row in by_context[name]]).mean:.2f}" for pair in pairs),
            *(format_field_mean(by_context[name], field, ".2f") for field in ("epe", "epe_pair_mean", "epe_seen")),
            _share(by_context[name], "over_3"),
            str(len(by_context[name])),
        ]
        for name in sorted(by_context, key=lambda name: summarise([row["epe"] for row in by_context[name]]).mean)
    ]
    header = ["context", *(f"{pair}, px" for pair in pairs), "all pixels, px"]
    header += [_heading(rows, "epe_pair_mean"), _heading(rows, "epe_seen"), "> 3 px, %", "seeds"]
    options = rows[0].get("options") or {}
    settings = "" if not options else f" with {', '.join(f'{key}={value}' for key, value in options.items())}"
    note = f"End-point errors on `{rows[0]['data']}`{settings} ({rows[0]['protocol']}), means over seeds."
    return f"{markdown_table(header, lines)}\n\n{note} {describe_environment(rows)}"


def _heading(rows: Sequence[Row], field: str) -> str:
    """Return the heading of a metric, with the number of pairs if not all pairs have it."""
    metric = next(metric for metric in STEREO.metrics if metric.name == field)
    return metric.among_images(rows[0], STEREO.member).heading


def _share(rows: Sequence[Row], field: str) -> str:
    return f"{100 * summarise([row[field] for row in rows]).mean:.1f}"
