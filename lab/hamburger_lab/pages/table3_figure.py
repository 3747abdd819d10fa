"""Time and memory of the context modules against n, on log axes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hamburger.files import write_atomically
from hamburger_lab.bench.table3_names import COMPILED
from hamburger_lab.pages.table3 import most_common_commit

PANELS = {
    "infer_ms": "inference, ms",
    "train_ms": "forward and backward, ms",
    "infer_mb": "inference, peak MiB",
    "train_mb": "forward and backward, peak MiB",
}
# The hams and the usual alternatives have a colour, the rest are grey.
COLOURS = {
    "nmf": "#c1121f",
    "cd": "#e36414",
    "vq": "#f4a261",
    "authors-nmf": "#6a040f",
    "sa-flash": "#003049",
    "sa-materialised": "#669bbc",
    "a2": "#2a9d8f",
    "efficient": "#588157",
    "ema": "#7b2cbf",
}


def draw_table3(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw one figure from rows of one device and dtype; modules that ran out of memory have no point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # compiled modules ran at few sizes and have a table instead
    rows = [row for row in rows if not row["module"].endswith(COMPILED)] or rows
    first, commit = rows[0], most_common_commit(rows)
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    for axis, (field, label) in zip(axes.flat, PANELS.items(), strict=True):
        for module in dict.fromkeys(row["module"] for row in rows):
            points = sorted(
                (row for row in rows if row["module"] == module and row[field] is not None), key=lambda row: row["n"]
            )
            if not points:
                continue
            known = module in COLOURS
            colour, above = COLOURS.get(module, "#bbbbbb"), 3 if known else 2
            axis.plot(
                [row["n"] for row in points],
                [row[field] for row in points],
                marker="o",
                markersize=3,
                color=colour,
                linewidth=1.8 if known else 0.8,
                label=module if known else None,
                zorder=above,
            )
            others = [row for row in points if str(row["commit"]) != commit]
            axis.plot(
                [row["n"] for row in others],
                [row[field] for row in others],
                "o",
                markersize=5,
                markeredgecolor=colour,
                markerfacecolor="white",
                zorder=above,
            )
        axis.set(xscale="log", yscale="log", xlabel="n = h w", title=label)
        axis.grid(alpha=0.3, which="both")
    if axes[0, 0].get_legend_handles_labels()[0]:
        axes[0, 0].legend(fontsize=8)
    mixed = any(str(row["commit"]) != commit for row in rows)
    figure.suptitle(
        f"{first['hardware']}, {first['dtype']}, b = {first['batch']}, c = {first['channels']}; "
        "grey: the other modules" + "; hollow: rows of other commits" * mixed
    )
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    plt.close(figure)
    write_atomically(path, image.getvalue())
