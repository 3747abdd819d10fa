"""`write_report`: one HTML page about training runs, with its tables, sentences and curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hamburger.files import check_writable, is_number, write_atomically
from hamburger.report import html
from hamburger.report.gallery import Gallery, Progress, open_gallery, render_atoms, render_predictions, render_spectra
from hamburger.report.html import CellText, Markup
from hamburger.report.study import (
    ALL_COLLAPSED,
    PairedDifference,
    RunGroup,
    Study,
    compare_paired,
    describe_collapses,
    group_runs,
    read_runs,
)
from hamburger.training.task import Metric

SECTIONS = {
    "results": "Results",
    "curves": "Learning curves",
    "predictions": "Predictions and errors",
    "atoms": "Atoms of the ham",
    "spectra": "Spectrum before and after",
    "measured": "How it was measured",
}
# how and where a score was measured: headings, and the fields of result.json
CONDITIONS = {"evaluation": "protocol"} | {
    name: name for name in ("hardware", "processes", "threads", "torch", "commit", "date")
}
DASHES = ("-", "--", "-.")
MAX_LINES = 12


def write_report(
    run_folders: Sequence[Path],
    out: Path,
    data_root: Path | None = None,
    *,
    device: str = "auto",
    intro: Markup | None = None,
    progress: Progress = lambda done, total, what: None,
) -> Path:
    """Write one HTML file about these runs; a folder of run folders stands for all of them.

    `data_root` is the data folder of data sets on disk; without it, their report has no images and says so. `intro`
    comes first on the page. `progress` is called with how much is done, all there is to do, and what it is.
    """
    check_writable(out)
    study = group_runs(read_runs([Path(folder) for folder in run_folders]))
    page = render_page(study, open_gallery(study, data_root, device=device), intro or Markup(), progress)
    write_atomically(out, page.encode())
    return out


def render_page(study: Study, gallery: Gallery | str, intro: Markup, progress: Progress) -> str:
    """The page as HTML; `gallery` may be the reason why there are no images."""
    contents: dict[str, str] = {"results": _results(study), "curves": plot_curves(study)}
    if isinstance(gallery, str):
        contents |= dict.fromkeys(("predictions", "atoms", "spectra"), html.paragraph(gallery, kind="soft"))
    else:
        contents["predictions"] = render_predictions(study, gallery, progress)
        if any(gallery.inputs(network, 1) for network in gallery.networks):  # networks that take one tensor per image
            contents["atoms"] = render_atoms(gallery, progress)
            colours = {group.name: line_style(study, group)["color"] for group in study.groups}
            contents["spectra"] = render_spectra(gallery, colours, progress)
    contents["measured"] = conditions_table(study) + run_table(study)
    shown = {name: title for name, title in SECTIONS.items() if name in contents}
    data = dict.fromkeys(str(run.recipe["data"].get("name")) for run in study.runs)
    title = f"{study.task.networks} on {', '.join(data)}"
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    head = (
        f"<h1>{html.text(title)}</h1>"
        + html.paragraph(f"{len(study.runs)} runs of {len(study.groups)} networks. Written {written}.", kind="soft")
        + f'<div class="verdict">{verdict_text(study)}</div>'
        + "<nav>"
        + "".join(f'<a href="#{name}">{title}</a>' for name, title in shown.items())
        + "</nav>"
    )
    return html.document(
        title, intro + head + "".join(html.section(name, title, contents[name]) for name, title in shown.items())
    )


def _results(study: Study) -> Markup:
    parts: list[str] = []
    if study.mixed:
        text = (
            f"Careful: these networks differ in more than their context ({', '.join(study.mixed)}), so a difference "
            "between them is not due to the context alone."
        )
        parts.append(html.paragraph(text, kind="note"))
    parts += [html.paragraph(line, kind="note") for line in _collapses(study)]
    guide = (
        f"The {study.task.metric.label} is that of the last step, {study.task.pooled}. "
        "Mean and sample standard deviation are over seeds, which change initial weights, data order and "
        "augmentation together. "
    )
    if len(study.groups) > 1:
        guide += (
            f"Differences to {study.reference.name} are paired by seed; the interval is Student's t, at 95 % for each "
            "row by itself: among many rows some will exclude zero by chance. "
        )
    guide += "Parameters, images/s (training) and peak memory are means over seeds."
    parts += [score_table(study), html.paragraph(guide, kind="soft"), plot_scores(study)]
    parts += [further_scores(study), per_seed_table(study), per_member_table(study)]
    return Markup("".join(parts))


def _collapses(study: Study) -> list[str]:
    results = {group.name: [run.result for run in group.runs if run.result] for group in study.groups}
    return describe_collapses(study.task, results)


# -- sentences ---------------------------------------------------------------------------------------------------------


def verdict_text(study: Study) -> Markup:
    """What the numbers support, and no more; a rival or baseline that wins comes first."""
    best, ham, rival = study.best(), study.best("ham"), study.best("rival")
    if best is None or best.score is None:
        return html.paragraph("No run has finished yet: there is no score to compare.")
    if _collapses(study) == [ALL_COLLAPSED]:
        return html.paragraph(ALL_COLLAPSED)
    metric, summary = study.task.metric, best.score
    mean = " ".join(filter(None, (metric.format(summary.mean), metric.unit)))
    spread = " with one seed, so its spread is unknown"
    if summary.deviation is not None:
        spread = f", deviation {metric.format(summary.deviation)} over {summary.n} seeds"
    most = "highest" if metric.higher else "lowest"
    sentences = [f"The {most} mean {metric.label} is that of {best.name}: {mean}{spread}."]
    if len(study.groups) == 1:
        sentences.append("There is nothing to compare it with here.")
    elif best.kind == "baseline":
        sentences.append("Here no context module is better than the baseline.")
    elif best.kind == "rival" and ham is not None:
        sentences.append(f"A rival wins: {_compare(metric, best, ham)}")
    elif best.kind == "ham" and rival is not None:
        sentences.append(f"The best rival is {rival.name}: {_compare(metric, best, rival)}")
    if ham is not None and study.reference.scores and ham is not study.reference:
        sentences.append(_compare(metric, ham, study.reference))
    return Markup("".join(html.paragraph(sentence) for sentence in sentences))


def _compare(metric: Metric, one: RunGroup, other: RunGroup) -> str:
    difference = compare_paired(one.scores, other.scores)
    if difference is None:
        return f"{one.name} and {other.name} share no seed, so they cannot be paired."
    gain = f"{metric.format_difference(difference.mean)} {metric.difference_unit}"
    points = f"{gain} over {difference.n} shared seed{'s' * (difference.n > 1)}"
    if difference.interval is None:
        return f"{one.name} minus {other.name} is {points}: too few seeds for an interval, so only a hint."
    low, high = difference.interval
    weight = "it excludes zero" if difference.clear else "it includes zero, so this may be chance"
    interval = f"95 % interval {metric.format_difference(low)} to {metric.format_difference(high)}"
    return f"{one.name} minus {other.name} is {points}, {interval}: {weight}."


# -- tables ------------------------------------------------------------------------------------------------------------


def score_table(study: Study) -> Markup:
    """One row per group: score with spread, difference to the reference, and cost."""
    metric = study.task.metric
    header = ["context", metric.heading, "deviation", "seeds", f"minus {study.reference.name}", "95 % interval"]
    costs: dict[str, tuple[str, Callable[[float], str]]] = {
        "parameters": ("parameters", lambda value: f"{value:,.0f}"),
        "images_per_s": ("images/s", lambda value: f"{value:.3g}" if value < 100 else f"{value:,.0f}"),
        "peak_mb": ("peak MB", lambda value: f"{value:,.0f}"),
    }
    costs = {
        field: cost for field, cost in costs.items() if any(group.mean(field) is not None for group in study.groups)
    }
    rows = []
    for group in study.groups:
        summary, done = group.score, len(group.scores)
        row: list[CellText] = [group.name]
        row.append(html.number(summary.mean, metric.format) if summary else "not finished")
        row.append(html.number(summary.deviation, metric.format) if summary else None)
        row.append(str(done) if done == len(group.runs) else f"{done} of {len(group.runs)}")
        row += _difference_cells(metric, study.difference(group))
        row += [html.number(group.mean(field), shown) for field, (_, shown) in costs.items()]
        rows.append(row)
    return html.table([*header, *(label for label, _ in costs.values())], rows, name="scores", kind="cards")


def _difference_cells(metric: Metric, difference: PairedDifference | None) -> tuple[CellText, CellText]:
    if difference is None:
        return None, None
    mean = html.number(difference.mean, metric.format_difference)
    if difference.interval is None:
        return mean, f"needs 3 shared seeds, has {difference.n}"
    return mean, Markup(" to ".join(html.number(end, metric.format_difference) for end in difference.interval))


def further_scores(study: Study) -> Markup:
    """The task's further scores, means over seeds; empty if no run has any."""
    headings: dict[Metric, list[str]] = {}  # usually one each; runs on different images may differ
    for metric in study.task.metrics[1:]:
        named = [metric.among_images(run.result, study.task.member) for run in study.runs if metric.name in run.result]
        if any(group.mean(metric.name) is not None for group in study.groups):
            headings[metric] = list(dict.fromkeys(each.heading for each in named))
    if not headings:
        return Markup()
    rows = [
        [group.name, *(html.number(group.mean(metric.name), metric.format) for metric in headings)]
        for group in study.groups
    ]
    content = html.table(["context", *map(" or ".join, headings.values())], rows, name="others")
    return html.collapsible(
        "Further scores", content + html.paragraph("Means over seeds, of the last step.", kind="soft")
    )


def per_seed_table(study: Study) -> Markup:
    """The score of every run."""
    metric = study.task.metric
    seeds = sorted({run.seed for run in study.runs})
    rows = [
        [group.name, *(html.number(group.scores.get(seed), metric.format) for seed in seeds)] for group in study.groups
    ]
    content = html.table([metric.heading, *(f"seed {seed}" for seed in seeds)], rows, name="per-seed")
    return html.collapsible("Every seed", content)


def per_member_table(study: Study) -> Markup:
    """The score of each class (or other member), mean over seeds; empty if no run has any."""
    each, member = study.task.member_metric, study.task.member
    if each is None:
        return Markup()
    means = {group.name: _member_means(group, each.name) for group in study.groups}
    members = dict.fromkeys(name for scores in means.values() for name in scores)
    if not members:
        return Markup()
    rows = [[name, *(html.number(scores.get(name), each.format) for scores in means.values())] for name in members]
    unit = f", {each.unit}" if each.unit else ""
    note = html.paragraph(f"Mean over seeds{unit}. A dash: {study.task.absent}.", kind="soft")
    return html.collapsible(
        f"{each.label} of each {member}", html.table([member, *means], rows, name=f"per-{member}") + note
    )


def _member_means(group: RunGroup, field: str) -> dict[str, float | None]:
    """Mean over the seeds in which a member has a score; None if it has none."""
    values: dict[str, list[float]] = {}
    for run in group.runs:
        by_name = run.result.get(field)
        for name, value in (by_name if isinstance(by_name, dict) else {}).items():
            values.setdefault(name, []).extend([float(value)] if is_number(value) else [])
    return {name: sum(scores) / len(scores) if scores else None for name, scores in values.items()}


def conditions_table(study: Study) -> Markup:
    """How the scores were measured; where runs differ, each value with its number of runs."""
    recipes = [run.recipe for run in study.runs]
    values: dict[str, list[Any]] = {"recipe": [recipe.get("name") for recipe in recipes]}
    if "backbone" in recipes[0]["model"]:
        models = [recipe["model"] for recipe in recipes]
        strides = [f", stride {model['output_stride']}" if "output_stride" in model else "" for model in models]
        values["backbone"] = [f"{model.get('backbone')}{each}" for model, each in zip(models, strides, strict=True)]
    values["data"] = [f"{recipe['data'].get('name')}, {recipe['data'].get('val_split')}" for recipe in recipes]
    values["steps x batch"] = [f"{recipe.get('steps')} x {recipe.get('batch')}" for recipe in recipes]
    values["training precision"] = [recipe.get("precision") for recipe in recipes]
    for label, field in CONDITIONS.items():
        values[label] = [run.result[field] for run in study.runs if run.result.get(field) is not None]
    values["date"] = sorted(str(date)[:10] for date in values["date"])  # the day is enough
    rows = [[label, _join_values(each)] for label, each in values.items() if each]
    return html.table(["what", "how"], rows, name="conditions", kind="text")


def _join_values(values: list[Any]) -> str:
    """Each value once, with its number of runs if there are several values."""
    counts = Counter(map(str, values))
    if len(counts) == 1:
        return str(values[0])
    return "; ".join(f"{value} ({n} run{'s' * (n > 1)})" for value, n in counts.items())


def run_table(study: Study) -> Markup:
    """The run folders and their state."""
    header = ["folder", "context", "seed", "state", "weights"]
    rows = []
    for group in study.groups:
        for run in group.runs:
            state = "finished" if run.result else "not finished"
            rows.append([str(run.path), group.name, str(run.seed), state, "yes" if run.weights else "no"])
    return html.collapsible("Run folders", html.table(header, rows, name="runs"))


# -- figures -----------------------------------------------------------------------------------------------------------


def line_style(study: Study, group: RunGroup) -> dict[str, Any]:
    """Colour and dashes of a group, the same in every figure: grey for the baseline, then 27 distinct styles."""
    others = [other for other in study.groups if other.kind != "baseline"]
    if group not in others:
        return {"color": html.BASELINE, "linestyle": "-"}
    index = others.index(group)
    return {
        "color": html.COLOURS[index % len(html.COLOURS)],
        "linestyle": DASHES[index // len(html.COLOURS) % len(DASHES)],
    }


def plot_scores(study: Study) -> Markup:
    """One dot per seed and a bar at the mean of each group."""
    scored = [group for group in study.groups if group.scores]
    if not scored:
        return Markup()
    metric = study.task.metric

    def draw(axes: Any) -> None:
        for index, group in enumerate(scored):
            style = line_style(study, group)["color"]
            values = [metric.scale * value for value in group.scores.values()]
            axes.plot(values, [index] * len(values), "o", color=style, alpha=0.75, markersize=6, markeredgewidth=0)
            axes.plot([sum(values) / len(values)] * 2, [index - 0.3, index + 0.3], color=style, linewidth=2.5)
        axes.set_yticks(range(len(scored)), [group.name for group in scored])
        axes.set(xlabel=metric.heading, ylim=(len(scored) - 0.4, -0.6))
        axes.grid(visible=False, axis="y")

    alt = f"{metric.label} of every run, by context"
    drawn = html.render_svg("scores", draw, alt=alt, height=0.75 + 0.3 * len(scored))
    return html.figure(
        drawn, "Each dot is one run, that is one seed; the bar is the mean. The axis does not begin at zero."
    )


def plot_curves(study: Study) -> Markup:
    """Training loss and validation score over steps."""
    metric = study.task.metric
    figures = [
        _curve(study, "loss", "Training loss", "loss", 1),
        _curve(study, metric.name, f"Validation {metric.label}", metric.heading, metric.scale),
    ]
    drawn = [drawing for drawing in figures if drawing]
    if not drawn:
        return html.paragraph("No run has written a learning curve (metrics.jsonl).", kind="soft")
    left_out = len(study.groups) - MAX_LINES
    note = f" The first {MAX_LINES} groups of {len(study.groups)} are drawn." if left_out > 0 else ""
    caption = (
        "Line: mean over seeds. Band: from the lowest to the highest seed. Steps at which only some of the seeds have "
        "a value are left out. The loss is that of the training batches as logged, with every auxiliary term, and "
        f"unsmoothed; heads with different terms are not comparable by it.{note}"
    )
    return Markup(html.side_by_side(*drawn) + html.paragraph(caption, kind="soft"))


def _curve(study: Study, field: str, title: str, unit: str, scale: int) -> str:
    """Mean, lowest and highest seed at the steps that all runs of a group with this curve share."""
    curves = {group: [curve for run in group.runs if (curve := run.curve(field))] for group in study.groups[:MAX_LINES]}
    curves = {group: by_seed for group, by_seed in curves.items() if by_seed and set.intersection(*map(set, by_seed))}
    if not curves:
        return ""

    def draw(axes: Any) -> None:
        for group, by_seed in curves.items():
            steps = sorted(set.intersection(*(set(curve) for curve in by_seed)))
            values = [[scale * curve[step] for curve in by_seed] for step in steps]
            style = line_style(study, group)
            means = [sum(each) / len(each) for each in values]
            marker = "o" if len(steps) < 12 else None
            axes.plot(steps, means, label=group.name, marker=marker, markersize=3, **style)
            low, high = [min(each) for each in values], [max(each) for each in values]
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
        axes.set(title=title, xlabel="step", ylabel=unit)
        axes.legend(ncols=2 if len(curves) > 5 else 1)

    return html.figure(html.render_svg(f"curve-{field}", draw, alt=f"{title} over steps, by context"))
