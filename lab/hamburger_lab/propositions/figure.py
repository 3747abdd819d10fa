"""The figure of the study, drawn from its JSON with matplotlib."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import Any

from hamburger_lab.propositions.report import CaseKey, case_label, rows_by_case

INPUT = "feature map"  # the input that is most like features inside a network
FLOOR = 1e-16  # drawn in place of zero on a logarithmic axis


def draw_study(result: dict[str, Any], path: Path) -> None:
    """Draw update sizes, spectra, terms of Eq. 12 and cosines to BPTT over seeds, on one input."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)  # no display, no global state of pyplot
    (moves, spectra), (terms, angles) = figure.subplots(2, 2)
    curves = rows_by_case({"rows": result["curves"]})
    rows = rows_by_case(result)
    shown = [case for case in curves if case[0] == INPUT]
    colours = {case: f"C{i}" for i, case in enumerate(shown)}

    for case in shown:
        # CD's bases are VQ's with unit columns, so many of their curves coincide: dashes show both
        dashes = "--" if case[1] == "CD" else "-"
        style: dict[str, Any] = {
            "label": case_label(case),
            "color": colours[case],
            "linewidth": 1.4,
            "linestyle": dashes,
        }
        for axes, name in ((moves, "moves"), (terms, "terms")):
            over_seeds = zip(*(curve[name] for curve in curves[case]), strict=True)
            axes.plot([geometric_mean([max(value, FLOOR) for value in values]) for values in over_seeds], **style)
        angles.plot(curves[case][0]["steps"], _mean_cosines(curves[case]), marker="o", markersize=3, **style)
    _draw_spectra(spectra, rows, shown, colours)

    moves.set(title="Contraction: |h$^{k+1}$ - h$^k$| / |h|", xlabel="step k", yscale="log", ylim=(FLOOR, None))
    terms.set(
        title=f"Terms of Eq. 12 at K = {result['protocol']['term_steps']}: operator norm",
        xlabel="index i (0 is the last step)",
        yscale="log",
        ylim=(FLOOR, None),
    )
    angles.set(title="One-step gradient: cosine to BPTT", xlabel="steps K", xscale="log", ylim=(-1.05, 1.05))
    terms.legend(fontsize=7)
    seeds, dtype = result["protocol"]["seeds"], result["protocol"]["dtype"]
    figure.suptitle(f"Section 2.3, measured on the {INPUT} (seeds: {seeds}, {dtype})")
    figure.savefig(path, dpi=130, format="png")


def _draw_spectra(
    axes: Any, rows: dict[CaseKey, list[dict[str, Any]]], shown: list[CaseKey], colours: dict[CaseKey, str]
) -> None:
    for place, case in enumerate(shown):
        for key, marker, shift in (("radius final", "o", -0.15), ("norm final", "^", 0.0), ("L_h", "x", 0.15)):
            heights = [row[key] for row in rows[case]]
            axes.scatter([place + shift] * len(heights), heights, marker=marker, s=18, color=colours[case])
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set(title="dF/dh: o radius, ^ norm at the end; x largest norm on the path", yscale="log")
    axes.set_xticks(range(len(shown)), [case_label(case).replace(", ", "\n") for case in shown], fontsize=7)


def _mean_cosines(curves: list[dict[str, Any]]) -> list[float]:
    """Return the mean over seeds at each K, NaN where the gradient is zero and has no angle."""
    means = []
    for values in zip(*(curve["one-step"] for curve in curves), strict=True):
        known = [value for value in values if value is not None]
        means.append(sum(known) / len(known) if known else float("nan"))
    return means
