"""Curves of the page, each a mean over seeds with the 95 % interval of that mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hamburger.inspect.evaluation import COUNTS
from hamburger.report.html import BASELINE, COLOURS, INK, Markup, figure, paragraph, render_svg, side_by_side
from hamburger.report.study import half_width, summarise
from hamburger_lab.ablations.grids import ATTENTIONS, HAMS, TESTED_STEPS, TRAINED_STEPS
from hamburger_lab.claims.result_tables import describe_runs
from hamburger_lab.rows import Results, Row, values_by_seed

LOOKS = {"breads": BASELINE, **dict(zip((*HAMS, *ATTENTIONS), COLOURS, strict=False))}
BAND = "Line: mean over seeds; band: its 95 % interval, from three seeds on."
Points = Sequence[Sequence[float]]  # of each x, the values of all seeds
Draw = Callable[[Any], None]  # into axes


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
    """The mean, and the interval of the mean where there are three values or more; of logarithms, for ratios."""
    there, back = (math.log, math.exp) if log else (float, float)
    summaries = [summarise([there(value) for value in sample]) for sample in values]
    means = [back(each.mean) for each in summaries]
    axes.plot(xs, means, dashes, color=colour, label=label or None, marker="o" if len(xs) < 9 else None, markersize=3)
    if all(each.n > 2 and each.deviation is not None for each in summaries):
        reach = [half_width(each) for each in summaries]
        low, high = ([back(each.mean + way * r) for each, r in zip(summaries, reach, strict=True)] for way in (-1, 1))
        axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)


def spectra_figures(results: Results) -> Markup:
    """Fig. 5: shares of the energy before and after, and those of D C and of attention matrices."""
    figures = []
    for name, rows in results.with_prefix("ablation_inside_").items():
        looked = [row for row in rows if "spectrum_before" in row]
        if not looked:
            continue
        around = _draw_spectra(
            looked, {"before": ":", "after": "-"}, ("breads", *HAMS), "Feature map around the context"
        )
        within = _draw_spectra(
            looked, {"ham": "-", "attention": "-"}, (*HAMS, *ATTENTIONS), "D C of hams, A of attentions"
        )
        figures.append(
            side_by_side(
                figure(
                    render_svg(f"spectra-{name}", around, alt="cumulative spectra before and after the context"), ""
                ),
                figure(
                    render_svg(f"ranks-{name}", within, alt="cumulative spectra of D C and of attention matrices"), ""
                ),
            )
            + paragraph(
                f"{describe_runs(rows)}. {BAND} Shares of squared singular values, mean over images.", kind="soft"
            )
        )
    return Markup("".join(figures))


def _draw_spectra(rows: list[Row], ends: Mapping[str, str], cells: Sequence[str], title: str) -> Draw:
    """A curve of each cell for each end that it has; `ends` have dashes."""

    def draw(axes: Any) -> None:
        for cell in cells:
            cell_rows = [row for row in rows if row["cell"] == f"{cell}-inside"]
            for end, dashes in ends.items():
                kept = [row[f"spectrum_{end}"] for row in cell_rows if f"spectrum_{end}" in row]
                if kept:
                    shares = [[100 * curve[i] for curve in kept] for i in range(len(COUNTS))]
                    label = cell if dashes == "-" else ""
                    plot_mean(axes, COUNTS, shares, colour=LOOKS[cell], dashes=dashes, label=label)
        if len(set(ends.values())) > 1:
            for end, dashes in ends.items():
                axes.plot([], [], dashes, color=BASELINE, label=end)
        axes.set(title=title, xlabel="largest singular values", ylabel="share of energy, %", xscale="log")
        axes.set_ylim(top=101)  # Student's knows nothing of the ends of a share
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.legend(loc="lower right")

    return draw


def angle_figures(results: Results) -> Markup:
    """Cosine of the one-step gradient to BPTT's, and norm over BPTT's, over the steps of a training."""
    figures = []
    for name, rows in results.with_prefix("ablation_angles_").items():
        cosine = _over_steps(rows, lambda row, at: row[f"cosine_{at}_one_step"], "cosine to BPTT", limit=0.5)
        ratio = _over_steps(rows, _norm_ratio, "norm over BPTT's", limit=1.0, log=True)
        figures.append(
            side_by_side(
                figure(
                    render_svg(f"cosine-{name}", cosine, alt="cosine of one-step gradient to BPTT over training"), ""
                ),
                figure(
                    render_svg(f"norm-{name}", ratio, alt="norm of one-step gradient over that of BPTT over training"),
                    "",
                ),
            )
            + paragraph(
                f"{describe_runs(rows)}, trained by the one-step gradient; both gradients of the same weights, batch "
                f"and dictionaries. Solid: gradient of the ham's input X; dashed: of all weights. {BAND}",
                kind="soft",
            )
        )
    return Markup("".join(figures))


def _norm_ratio(row: Row, at: str) -> float | None:
    one, reference = row[f"norm_{at}_one_step"], row[f"norm_{at}_bptt"]
    return one / reference if one and reference else None


def _over_steps(
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
                    look = {"colour": LOOKS[ham], "dashes": dashes, "label": label}
                    plot_mean(axes, list(by_step), list(by_step.values()), **look, log=log)
        axes.axhline(limit, color=BASELINE, linewidth=1)
        axes.set(title=title, xlabel="step", **({"yscale": "log"} if log else {}))
        if not log:
            axes.set_ylim(bottom=max(axes.get_ylim()[0], -1.02), top=1.02)  # of a cosine: Student's knows no ends
        axes.legend()

    return draw


def steps_figures(results: Results) -> Markup:
    """Figs. 4 and 7 to 9: mIoU by the steps of the evaluation, a line for each K of the training."""
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
    """Time and memory of every gradient, at the largest n of each file."""
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
    by = {(row["ham"], row["steps"], row["grad"]): row for row in rows if row["n"] == n}
    grads = list(dict.fromkeys(grad for _, _, grad in by))
    groups = list(dict.fromkeys((ham, steps) for ham, steps, _ in by))

    def draw(axes: Any) -> None:
        width = 0.8 / len(grads)
        for at, (grad, colour) in enumerate(zip(grads, COLOURS, strict=False)):
            measured = [(group, by[*key, grad]) for group, key in enumerate(groups) if (*key, grad) in by]
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
