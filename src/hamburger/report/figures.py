"""Figures of a report: matplotlib as inline SVG, embedded images, scores and learning curves."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hamburger.report.html import Markup, figure, paragraph, side_by_side
from hamburger.report.study import RunGroup, Study

# Okabe and Ito's colour-blind safe palette, without yellow and black, which are invisible on a white or a dark page;
# then three of Tol's
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#AA4499", "#999933", "#44AA99")
BASELINE = "#8A8A8A"
DASHES = ("-", "--", "-.")
INK = "#123456"  # placeholder for the text colour of the page
WIDTH, HEIGHT = 4.6, 3.0  # inches: 331 points, so that a point is a pixel on a narrow phone
MAX_SIDE = 360  # pixels of the longer side of an embedded image


def line_style(study: Study, group: RunGroup) -> dict[str, Any]:
    """Colour and dashes of a group, the same in every figure: grey for the baseline, then 27 distinct styles."""
    others = [other for other in study.groups if other.kind != "baseline"]
    if group not in others:
        return {"color": BASELINE, "linestyle": "-"}
    index = others.index(group)
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def render_svg(name: str, draw: Callable[[Any], None], *, alt: str, height: float = HEIGHT) -> str:
    """Draw one pair of axes as inline SVG. `name` keeps the ids of several figures on a page distinct."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 9,
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "lines.linewidth": 1.8,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)  # needs no display and no global state of pyplot
        axes = figure.subplots()
        axes.grid(color=INK, alpha=0.12, linewidth=0.7)
        axes.set_axisbelow(True)
        draw(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _inline(file.getvalue(), name, alt)


def _inline(text: str, name: str, alt: str) -> str:
    """The drawing without XML header, name spaces, metadata and fixed size."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', body)
    assert box
    inside = body[body.index(">") + 1 :]
    inside = re.sub(r"font: (?:[^;\"]*? )?([\d.]+px) [^;\"]*", r"font-size: \1", inside)
    inside = inside.replace(INK, "currentColor")
    # matplotlib's own ids (figure_1, axes_1 ...) would repeat on the page, and nothing refers to them
    inside = re.sub(r'<g id="[^"]*">', "<g>", inside)
    return f'<svg role="img" aria-label="{alt}" data-figure="{name}" {box[0]}>{inside}'


def encode_image(image: Tensor, *, photo: bool = False) -> str:
    """The image as a data URI.   3 h w or h w 3, uint8"""
    from matplotlib import image as files

    pixels = image.movedim(0, 2) if image.shape[0] == 3 and image.shape[2] != 3 else image
    file = io.BytesIO()
    file_format = "jpeg" if photo else "png"
    # matplotlib's version note would be larger than some of these images
    extra: dict[str, Any] = {"pil_kwargs": {"quality": 85}} if photo else {"metadata": {"Software": None}}
    files.imsave(file, pixels.cpu().contiguous().numpy(), format=file_format, **extra)
    return f"data:image/{file_format};base64,{base64.b64encode(file.getvalue()).decode()}"


def is_photo(image: Tensor) -> bool:
    """Whether to show the image large and as JPEG; small images are shown pixel by pixel."""
    return max(image.shape) > 128


def shrink(image: Tensor, *, labels: bool = False) -> Tensor:
    """... h w to at most MOST pixels a side: by antialiased interpolation, for labels by nearest neighbour."""
    h, w = image.shape[-2:]
    if max(h, w) <= MAX_SIDE:
        return image
    size = (max(1, round(h * MAX_SIDE / max(h, w))), max(1, round(w * MAX_SIDE / max(h, w))))
    stack = image.reshape(1, -1, h, w).float()
    if labels:
        small = torch.nn.functional.interpolate(stack, size=size, mode="nearest-exact")
    else:
        small = torch.nn.functional.interpolate(stack, size=size, mode="bilinear", antialias=True).round().clamp(0, 255)
    return small.reshape(*image.shape[:-2], *size).to(image.dtype)


def colourise(values: Tensor, *, signed: bool) -> Tensor:
    """Colour a map with a colour-blind and greyscale safe colour map.   h w   ->   3 h w, 0 ... 1

    Signed maps are white at zero and equally dark on both sides; others run from dark at zero to bright at the maximum.
    """
    from matplotlib import colormaps

    largest = values.abs().max().clamp_min(1e-12)
    level = values / largest / 2 + 0.5 if signed else values / largest
    colours = colormaps["PuOr_r" if signed else "cividis"](level.double().cpu().numpy())[..., :3]
    return torch.from_numpy(colours).movedim(2, 0).float()


# -- scores and learning curves ----------------------------------------------------------------------------------------


MAX_LINES = 12


def plot_scores(study: Study) -> Markup:
    """One dot per seed and a bar at the mean of each group."""
    scored = [group for group in study.groups if group.scores]
    if not scored:
        return Markup()

    score = study.task.score

    def draw(axes: Any) -> None:
        for index, group in enumerate(scored):
            style = line_style(study, group)["color"]
            values = [score.scale * value for value in group.scores.values()]
            axes.plot(values, [index] * len(values), "o", color=style, alpha=0.75, markersize=6, markeredgewidth=0)
            axes.plot([sum(values) / len(values)] * 2, [index - 0.3, index + 0.3], color=style, linewidth=2.5)
        axes.set_yticks(range(len(scored)), [group.name for group in scored])
        axes.set(xlabel=score.heading, ylim=(len(scored) - 0.4, -0.6))
        axes.grid(visible=False, axis="y")

    alt = f"{score.words} of every run, by context"
    drawn = render_svg("scores", draw, alt=alt, height=0.75 + 0.3 * len(scored))
    return figure(drawn, "Each dot is one run, that is one seed; the bar is the mean. The axis does not begin at zero.")


def plot_curves(study: Study) -> Markup:
    """Training loss and validation score over steps."""
    score = study.task.score
    figures = [
        _curve(study, "loss", "Training loss", "loss", 1),
        _curve(study, score.name, f"Validation {score.words}", score.heading, score.scale),
    ]
    drawn = [drawing for drawing in figures if drawing]
    if not drawn:
        return paragraph("No run has written a learning curve (metrics.jsonl).", kind="soft")
    left_out = len(study.groups) - MAX_LINES
    note = f" The first {MAX_LINES} groups of {len(study.groups)} are drawn." if left_out > 0 else ""
    caption = (
        "Line: mean over seeds. Band: from the lowest to the highest seed. Steps at which only some of the seeds have "
        "a value are left out. The loss is that of the training batches as logged, with every auxiliary term, and "
        f"unsmoothed; heads with different terms are not comparable by it.{note}"
    )
    return Markup(side_by_side(*drawn) + paragraph(caption, kind="soft"))


def seed_band(group: RunGroup, field: str) -> list[tuple[int, float, float, float]]:
    """(step, mean, lowest, highest) at the steps that all runs with this curve share."""
    curves = [dict(curve) for run in group.runs if (curve := run.curve(field))]
    if not curves:
        return []
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    rows = []
    for step in shared:
        values = [curve[step] for curve in curves]
        rows.append((step, sum(values) / len(values), min(values), max(values)))
    return rows


def _curve(study: Study, field: str, title: str, unit: str, scale: int) -> str:
    bands = {index: seed_band(group, field) for index, group in enumerate(study.groups[:MAX_LINES])}
    bands = {index: rows for index, rows in bands.items() if rows}
    if not bands:
        return ""

    def draw(axes: Any) -> None:
        for index, rows in bands.items():
            steps, mean, low, high = ([row[i] for row in rows] for i in range(4))
            mean, low, high = ([scale * value for value in values] for values in (mean, low, high))
            style = line_style(study, study.groups[index])
            marker = "o" if len(steps) < 12 else None
            axes.plot(steps, mean, label=study.groups[index].name, marker=marker, markersize=3, **style)
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
        axes.set(title=title, xlabel="step", ylabel=unit)
        axes.legend(ncols=2 if len(bands) > 5 else 1)

    return figure(render_svg(f"curve-{field}", draw, alt=f"{title} over steps, by context"), "")
