"""Scores and learning curves as figures, one line per group, with what the seeds span."""

from __future__ import annotations

from typing import Any

from hamburger.analysis.report.drawing import line, svg
from hamburger.analysis.report.groups import Group, Study
from hamburger.analysis.report.html import Markup, figure, paragraph, side_by_side

MOST_LINES = 12


def dots(study: Study) -> Markup:
    """Each seed a dot, the mean a bar: the spread as it is."""
    scored = [group for group in study.groups if group.scores]
    if not scored:
        return Markup()

    score = study.kind.score

    def draw(axes: Any) -> None:
        for place, group in enumerate(scored):
            look = line(study, group)["color"]
            values = [score.scale * value for value in group.scores.values()]
            axes.plot(values, [place] * len(values), "o", color=look, alpha=0.75, markersize=6, markeredgewidth=0)
            axes.plot([sum(values) / len(values)] * 2, [place - 0.3, place + 0.3], color=look, linewidth=2.5)
        axes.set_yticks(range(len(scored)), [group.name for group in scored])
        axes.set(xlabel=score.heading, ylim=(len(scored) - 0.4, -0.6))
        axes.grid(visible=False, axis="y")

    alt = f"{score.words} of every run, by context"
    drawn = svg("scores", draw, alt=alt, height=0.75 + 0.3 * len(scored))
    return figure(drawn, "Each dot is one run, that is one seed; the bar is the mean. The axis does not begin at zero.")


def curves(study: Study) -> Markup:
    """Loss and validation score over steps."""
    score = study.kind.score
    made = [
        _curve(study, "loss", "Training loss", "loss", 1),
        _curve(study, score.name, f"Validation {score.words}", score.heading, score.scale),
    ]
    drawn = [drawing for drawing in made if drawing]
    if not drawn:
        return paragraph("No run has written a learning curve (metrics.jsonl).", kind="soft")
    left_out = len(study.groups) - MOST_LINES
    note = f" The first {MOST_LINES} groups of {len(study.groups)} are drawn." if left_out > 0 else ""
    caption = (
        "Line: mean over seeds. Band: from the lowest to the highest seed. Steps at which only some of the seeds have "
        "a value are left out. The loss is that of the training batches as logged, with every auxiliary term, and "
        f"unsmoothed; heads with different terms are not comparable by it.{note}"
    )
    return Markup(side_by_side(*drawn) + paragraph(caption, kind="soft"))


def band(group: Group, field: str) -> list[tuple[int, float, float, float]]:
    """(step, mean, lowest, highest) at the steps that all runs with such a curve share."""
    found = [dict(curve) for run in group.runs if (curve := run.curve(field))]
    if not found:
        return []
    shared = sorted(set.intersection(*(set(curve) for curve in found)))
    rows = []
    for step in shared:
        values = [curve[step] for curve in found]
        rows.append((step, sum(values) / len(values), min(values), max(values)))
    return rows


def _curve(study: Study, field: str, title: str, unit: str, scale: int) -> str:
    bands = {place: band(group, field) for place, group in enumerate(study.groups[:MOST_LINES])}
    bands = {place: rows for place, rows in bands.items() if rows}
    if not bands:
        return ""

    def draw(axes: Any) -> None:
        for place, rows in bands.items():
            steps, mean, low, high = ([row[i] for row in rows] for i in range(4))
            mean, low, high = ([scale * value for value in values] for values in (mean, low, high))
            look = line(study, study.groups[place])
            marker = "o" if len(steps) < 12 else None
            axes.plot(steps, mean, label=study.groups[place].name, marker=marker, markersize=3, **look)
            axes.fill_between(steps, low, high, color=look["color"], alpha=0.18, linewidth=0)
        axes.set(title=title, xlabel="step", ylabel=unit)
        axes.legend(ncols=2 if len(bands) > 5 else 1)

    return figure(svg(f"curve-{field}", draw, alt=f"{title} over steps, by context"), "")
