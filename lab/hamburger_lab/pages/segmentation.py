"""Tables of docs/segmentation.md and docs/segmentation-short.md, from rows of `ham compare` and `ham bench network`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hamburger.report.study import compare_paired, summarise
from hamburger_lab.markdown import markdown_table
from hamburger_lab.pages.comparison import (
    describe_environment,
    format_seeds,
    list_seeds,
    ranked_cells,
    scores_by_context,
)
from hamburger_lab.rows import Row


def accuracy_table(rows: Sequence[Row]) -> str:
    """Return mIoU of every context over its seeds, and its paired difference to the baseline; best first."""
    scores = scores_by_context(rows, lambda row: 100 * row["miou"])
    lines = [[context, *cells, format_seeds(scores[context], 1)] for context, cells in ranked_cells(scores, 1).items()]
    header = ["context", "mIoU", "spread", "minus baseline", "95 % interval", "each seed"]
    return f"{markdown_table(header, lines)}\n\n{_protocol(rows)}"


def class_table(rows: Sequence[Row]) -> str:
    """Return IoU of every class: mean and spread of the baseline, and the difference of each context to it."""
    scores: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        for name, iou in row["per_class"].items():
            scores.setdefault(name, {}).setdefault(row["context"], {})[row["seed"]] = 100 * iou
    contexts = [name for name in dict.fromkeys(row["context"] for row in rows) if name != "baseline"]
    lines = []
    for name, by_context in scores.items():
        base = summarise(list(by_context["baseline"].values()))
        spread = "" if base.deviation is None else f" ({base.deviation:.1f})"
        differences = [compare_paired(by_context[context], by_context["baseline"]) for context in contexts]
        gains = ["" if one is None else f"{one.mean:+z.1f}" for one in differences]
        lines.append([name, f"{base.mean:.1f}{spread}", *gains])
    note = "IoU in percent: the mean of the baseline with its spread over seeds, and mean differences to it."
    return f"{markdown_table(['class', 'baseline', *contexts], lines)}\n\n{note}"


def _protocol(rows: Sequence[Row]) -> str:
    first = rows[0]
    return (
        f"Recipe `{first['recipe']}`, {first['steps']} steps of {first['batch']} images, precision "
        f"{first['precision']}, validation mIoU of the last step in percent ({first['protocol']}), seeds "
        f"{list_seeds(rows)}; spread is the standard deviation over seeds, differences are paired by seed. "
        f"{describe_environment(rows)}"
    )


def large_image_table(rows: Sequence[Row]) -> str:
    """Return memory, time and agreement with whole-image labels of the ways to label a large image."""
    names = {"exact": "`--exact`", "tiles": "independent tiles", "whole": "the whole image"}
    labelled = {(row["method"], row["height"]): row for row in rows if "seconds" in row}
    shares = {(row["method"], row["height"]): row["agree"] for row in rows if "agree" in row}
    errors = {(row["method"], row["height"]): row["bases_error"] for row in rows if "bases_error" in row}
    lines = [
        [
            f"{row['height']:,} x {row['width']:,}",
            names[method],
            f"{row['peak_mb']:,}",
            f"{row['seconds']:,.0f}",
            f"{100 * shares[method, height]:.3f} %" if (method, height) in shares else "",
            f"{errors[method, height]:.1e}" if (method, height) in errors else "",
        ]
        for height in sorted({height for _, height in labelled})
        for method in names
        if (row := labelled.get((method, height)))
    ]
    first = rows[0]
    note = (
        f"HamNet of recipe `patchwork` (backbone `tiny`, NMF), mosaics of generated scenes, tiles of "
        f"{first['max_pixels']:,} pixels with margins, float32. One run each on a machine that did other work, so "
        f"seconds are upper bounds; memory is the peak of the process, with Python and torch; the error of NMF's bases "
        f"is relative to a solve in float64. {describe_environment(rows)}"
    )
    header = [
        "image",
        "labelled as",
        "memory, MiB",
        "seconds",
        "pixels labelled as in the whole image",
        "error of the bases",
    ]
    return f"{markdown_table(header, lines)}\n\n{note}"


def network_speed_table(rows: Sequence[Row]) -> str:
    """Return time and memory of a training step of the whole network with each context."""
    slowest = max(row["train_ms"] for row in rows if row["train_ms"])
    lines = [
        [
            row["context"],
            f"{row['params'] / 1e6:.2f}",
            _step(row),
            f"{row['images_per_s']:.0f}" if row["images_per_s"] else "",
            f"{row['peak_mb']:,.0f}" if row["peak_mb"] else "",
        ]
        for row in sorted(rows, key=lambda row: row["train_ms"] or slowest + 1)
    ]
    first = rows[0]
    spreads = [row["train_ms_iqr"] / row["train_ms"] for row in rows if row["train_ms_iqr"] is not None]
    jitter = (
        f" with interquartile range (typically {100 * statistics.median(spreads):.0f} % of the median: smaller "
        "differences are noise)"
        if spreads
        else ""
    )
    # files of earlier versions ran one network after the other
    order = f"networks in shuffled rounds, TF32 {first['tf32']}" if "ratio" in first else "one network at a time"
    note = (
        f"Forward, backward and SGD step of {first['backbone']} at stride {first['output_stride']}, "
        f"{first['batch']} x 3 x {first['crop']} x {first['crop']}, {first['dtype']}, channels last, {order}, "
        f"medians of {first['repeats']} steps{jitter}. {first['hardware']}, torch {first['torch']}, "
        f"commit {first['commit']} (`ham bench network`)."
    )
    return f"{markdown_table(['context', 'parameters, 10^6', 'ms', 'images/s', 'peak MiB'], lines)}\n\n{note}"


def _step(row: Row) -> str:
    if not row["train_ms"]:
        return str(row["note"])
    return f"{row['train_ms']:.1f}" + ("" if row["train_ms_iqr"] is None else f" ({row['train_ms_iqr']:.1f})")
