"""Figures of the HTML page of claims: means over seeds with the 95 % interval of the mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hamburger.report.html import BASELINE, COLOURS, INK, Markup, figure, paragraph, render_svg, side_by_side
from hamburger.report.study import half_width, summarise
from hamburger_lab.ablations.context_statistics import COUNTS
from hamburger_lab.ablations.grids import ATTENTIONS, HAMS, TESTED_STEPS, TRAINED_STEPS
from hamburger_lab.claims.result_tables import describe_runs
from hamburger_lab.rows import Results, Row, values_by_seed

CELL_COLOURS = {"breads": BASELINE, **dict(zip((*HAMS, *ATTENTIONS), COLOURS, strict=False))}
BAND = "Line: mean over seeds; band: its 95 % interval, from three seeds on."
Points = Sequence[Sequence[float]]  # for each x, the values of all seeds
Draw = Callable[[Any], None]  # draws into matplotlib axes


def plot_mean(
    axes: Any,
    xs: Sequence[float],
    values: Points,
    *,
    colour: str,
    dashes: str = "-",
    label: str = "",
    log: bool = False,
) -> None:
    """Plot the mean and, from three values on, its interval; with `log`, those of the logarithms, for ratios."""
    transform, inverse = (math.log, math.exp) if log else (float, float)
    summaries = [summarise([transform(value) for value in sample]) for sample in values]
    means = [inverse(each.mean) for each in summaries]
    axes.plot(xs, means, dashes, color=colour, label=label or None, marker="o" if len(xs) < 9 else None, markersize=3)
    if all(each.n > 2 and each.deviation is not None for each in summaries):
        halves = [half_width(each) for each in summaries]
        low, high = (
            [inverse(each.mean + sign * half) for each, half in zip(summaries, halves, strict=True)] for sign in (-1, 1)
        )
        axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)


def spectra_figures(results: Results) -> Markup:
    """Return cumulative spectra (Fig. 5): before and after the context, of D C and of attention matrices."""
    figures = []
    for name, rows in results.with_prefix("ablation_inside_").items():
        measured = [row for row in rows if "spectrum_before" in row]
        if not measured:
            continue
        feature_map_figure = _draw_spectra(
            measured, {"before": ":", "after": "-"}, ("breads", *HAMS), "Feature map around the context"
        )
        matrix_figure = _draw_spectra(
            measured, {"ham": "-", "attention": "-"}, (*HAMS, *ATTENTIONS), "D C of hams, A of attentions"
        )
        figures.append(
            side_by_side(
                figure(
                    render_svg(
                        f"spectra-{name}", feature_map_figure, alt="cumulative spectra before and after the context"
                    ),
                    "",
                ),
                figure(
                    render_svg(
                        f"ranks-{name}", matrix_figure, alt="cumulative spectra of D C and of attention matrices"
                    ),
                    "",
                ),
            )
            + paragraph(
                f"{describe_runs(rows)}. {BAND} Shares of squared singular values, mean over images.", kind="soft"
            )
        )
    return Markup("".join(figures))


def _draw_spectra(rows: list[Row], spectra: Mapping[str, str], cells: Sequence[str], title: str) -> Draw:
    """Return a function that draws one curve per cell and spectrum; `spectra` maps their names to line styles."""

    def draw(axes: Any) -> None:
        for cell in cells:
            cell_rows = [row for row in rows if row["cell"] == f"{cell}-inside"]
            for spectrum, dashes in spectra.items():
                curves = [row[f"spectrum_{spectrum}"] for row in cell_rows if f"spectrum_{spectrum}" in row]
                if curves:
                    shares = [[100 * curve[i] for curve in curves] for i in range(len(COUNTS))]
                    label = cell if dashes == "-" else ""
                    plot_mean(axes, COUNTS, shares, colour=CELL_COLOURS[cell], dashes=dashes, label=label)
        if len(set(spectra.values())) > 1:
            for spectrum, dashes in spectra.items():
                axes.plot([], [], dashes, color=BASELINE, label=spectrum)
        axes.set(title=title, xlabel="largest singular values", ylabel="share of energy, %", xscale="log")
        axes.set_ylim(top=101)  # Student's interval may exceed 100 %
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.legend(loc="lower right")

    return draw


def angle_figures(results: Results) -> Markup:
    """Return cosine to BPTT and norm relative to BPTT of the one-step gradient over the steps of a training."""
    figures = []
    for name, rows in results.with_prefix("ablation_angles_").items():
        cosine = _draw_over_steps(rows, lambda row, at: row[f"cosine_{at}_one_step"], "cosine to BPTT", limit=0.5)
        ratio = _draw_over_steps(rows, _norm_ratio, "norm relative to BPTT", limit=1.0, log=True)
        figures.append(
            side_by_side(
                figure(
                    render_svg(f"cosine-{name}", cosine, alt="cosine of one-step gradient to BPTT over training"), ""
                ),
                figure(
                    render_svg(f"norm-{name}", ratio, alt="norm of one-step gradient relative to BPTT over training"),
                    "",
                ),
            )
            + paragraph(
                f"{describe_runs(rows)}, trained by the one-step gradient; both gradients use the same weights, batch "
                f"and dictionaries. Solid: gradient of the ham's input X; dashed: of all weights. {BAND}",
                kind="soft",
            )
        )
    return Markup("".join(figures))


def _norm_ratio(row: Row, at: str) -> float | None:
    one_step, bptt = row[f"norm_{at}_one_step"], row[f"norm_{at}_bptt"]
    return one_step / bptt if one_step and bptt else None


def _draw_over_steps(
    rows: list[Row], read: Callable[[Row, str], float | None], title: str, *, limit: float, log: bool = False
) -> Draw:
    def draw(axes: Any) -> None:
        for ham in HAMS:
            series = [row["angles"] for row in rows if row["cell"] == f"{ham}-angles"]
            for at, dashes in (("input", "-"), ("weights", "--")):
                by_step: dict[int, list[float]] = {}
                for row in (row for one in series for row in one):
                    value = read(row, at)
                    if value is not None:
                        by_step.setdefault(row["step"], []).append(value)
                if by_step:
                    label = ham if at == "input" else ""
                    style = {"colour": CELL_COLOURS[ham], "dashes": dashes, "label": label}
                    plot_mean(axes, list(by_step), list(by_step.values()), **style, log=log)
        axes.axhline(limit, color=BASELINE, linewidth=1)
        axes.set(title=title, xlabel="step", **({"yscale": "log"} if log else {}))
        if not log:
            axes.set_ylim(
                bottom=max(axes.get_ylim()[0], -1.02), top=1.02
            )  # Student's interval of a cosine may exceed 1
        axes.legend()

    return draw


def steps_figures(results: Results) -> Markup:
    """Return mIoU by the steps of the evaluation (Figs. 4 and 7 to 9), one line for each K of the training."""
    figures = []
    for name, rows in results.with_prefix("ablation_steps_").items():
        drawn = [
            render_svg(f"steps-{ham}-{name}", _draw_steps(rows, ham), alt=f"mIoU of {ham} by steps") for ham in HAMS
        ]
        figures.append(side_by_side(*(figure(one, "") for one in drawn)))
        figures.append(paragraph(f"{describe_runs(rows)}. {BAND}", kind="soft"))
    return Markup("".join(figures))


def _draw_steps(rows: list[Row], ham: str) -> Draw:
    def draw(axes: Any) -> None:
        for trained, colour in zip(TRAINED_STEPS, COLOURS, strict=False):
            scores: dict[int, list[float]] = {}
            for tested in TESTED_STEPS:
                cell = f"{ham}-k{trained}" + (f"-at{tested}" if tested != trained else "")
                values = list(values_by_seed(rows, "cell", cell, "miou", 100).values())
                scores |= {tested: values} if values else {}
            if scores:
                plot_mean(axes, list(scores), list(scores.values()), colour=colour, label=f"trained with K = {trained}")
        axes.set(title=ham.upper(), xlabel="K in evaluation", ylabel="mIoU, %", xscale="log")
        axes.xaxis.set_major_formatter("{x:.0f}")
        if axes.lines:
            axes.legend()

    return draw


def cost_figures(results: Results) -> Markup:
    """Return time and memory of every gradient at the largest n of each file."""
    figures = []
    for name, rows in results.with_prefix("gradients_").items():
        drawn = [
            render_svg(
                f"{unit}-{name}", _draw_costs(rows, unit, title), alt=f"{title} of every gradient of a ham", height=3.6
            )
            for unit, title in (("ms", "time, ms"), ("mb", "peak memory, MiB"))
        ]
        figures.append(side_by_side(*(figure(one, "") for one in drawn)))
        figures.append(paragraph(f"{rows[0]['hardware']}. Lines on bars of time: quartiles.", kind="soft"))
    return Markup("".join(figures))


def _draw_costs(rows: list[Row], unit: str, title: str) -> Draw:
    n = max(row["n"] for row in rows)
    by_case = {(row["ham"], row["steps"], row["grad"]): row for row in rows if row["n"] == n}
    grads = list(dict.fromkeys(grad for _, _, grad in by_case))
    groups = list(dict.fromkeys((ham, steps) for ham, steps, _ in by_case))

    def draw(axes: Any) -> None:
        width = 0.8 / len(grads)
        for at, (grad, colour) in enumerate(zip(grads, COLOURS, strict=False)):
            measured = [(group, by_case[*key, grad]) for group, key in enumerate(groups) if (*key, grad) in by_case]
            axes.barh(
                [group + (at - (len(grads) - 1) / 2) * width for group, _ in measured],
                [row[unit] for _, row in measured],
                width,
                xerr=[row["ms_iqr"] / 2 for _, row in measured] if unit == "ms" else None,
                ecolor=INK,
                color=colour,
                label=grad,
            )
        axes.set_yticks(range(len(groups)), [f"{ham}, K = {steps}" for ham, steps in groups])
        axes.set(title=f"{title}, n = {n:,}", xscale="log")
        axes.invert_yaxis()
        axes.legend(fontsize=7.5)
        axes.grid(visible=False, axis="y")

    return draw
