"""matplotlib -> text that a page can hold: line figures as inline SVG, pictures as PNG or JPEG in data URIs.

Figures are drawn in the colour of the text around them, so that one figure serves light and dark pages.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hamburger.analysis.report.groups import Group, Study

# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow and black, which a white or a
# dark page would swallow; then three of Tol's
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#AA4499", "#999933", "#44AA99")
BASELINE = "#8A8A8A"
DASHES = ("-", "--", "-.")
INK = "#123456"  # stands for the colour of the text until the figure is in the page
WIDTH, HEIGHT = 4.6, 3.0  # inches: 331 points, so that a point is a pixel on a narrow phone
MOST = 360  # pixels of the longer side of an embedded picture


def line(study: Study, group: Group) -> dict[str, Any]:
    """Colour and dashes of a group, the same in every figure: the baseline is grey, then 27 that differ."""
    others = [other for other in study.groups if other.kind != "baseline"]
    if group not in others:
        return {"color": BASELINE, "linestyle": "-"}
    place = others.index(group)
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place // len(COLOURS) % len(DASHES)]}


def svg(name: str, draw: Callable[[Any], None], *, alt: str, height: float = HEIGHT) -> str:
    """One pair of axes as inline SVG. `name` keeps the ids of several figures on a page apart."""
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
        FigureCanvasSVG(figure)  # no display, no global state of pyplot
        axes = figure.subplots()
        axes.grid(color=INK, alpha=0.12, linewidth=0.7)
        axes.set_axisbelow(True)
        draw(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _inline(file.getvalue(), name, alt)


def _inline(text: str, name: str, alt: str) -> str:
    """Only the drawing: a page needs no XML header, no name spaces, no note of its maker, and no fixed size."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', body)
    assert box
    inside = body[body.index(">") + 1 :]
    inside = re.sub(r"font: (?:[^;\"]*? )?([\d.]+px) [^;\"]*", r"font-size: \1", inside)
    inside = inside.replace(INK, "currentColor")
    # ids that matplotlib counts (figure_1, axes_1 ...) would repeat on the page, and nothing refers to them
    inside = re.sub(r'<g id="[^"]*">', "<g>", inside)
    return f'<svg role="img" aria-label="{alt}" data-figure="{name}" {box[0]}>{inside}'


def picture(image: Tensor, *, photo: bool = False) -> str:
    """A data URI.   3 h w or h w 3, uint8; large ones are shrunk to a phone's width"""
    from matplotlib import image as files

    pixels = image.movedim(0, 2) if image.shape[0] == 3 and image.shape[2] != 3 else image
    file = io.BytesIO()
    form = "jpeg" if photo else "png"
    # matplotlib's own note of its version would be larger than some of these pictures
    extra: dict[str, Any] = {"pil_kwargs": {"quality": 85}} if photo else {"metadata": {"Software": None}}
    files.imsave(file, pixels.cpu().contiguous().numpy(), format=form, **extra)
    return f"data:image/{form};base64,{base64.b64encode(file.getvalue()).decode()}"


def is_photo(image: Tensor) -> bool:
    """Whether it is shown large, and as JPEG: small images are shown pixel by pixel."""
    return max(image.shape) > 128


def shrink(image: Tensor, *, labels: bool = False) -> Tensor:
    """... h w to at most MOST pixels a side: by the mean over what a pixel covers, or for labels by picking."""
    h, w = image.shape[-2:]
    if max(h, w) <= MOST:
        return image
    size = (max(1, round(h * MOST / max(h, w))), max(1, round(w * MOST / max(h, w))))
    stack = image.reshape(1, -1, h, w).float()
    if labels:
        small = torch.nn.functional.interpolate(stack, size=size, mode="nearest-exact")
    else:
        small = torch.nn.functional.interpolate(stack, size=size, mode="bilinear", antialias=True).round().clamp(0, 255)
    return small.reshape(*image.shape[:-2], *size).to(image.dtype)


def heat(values: Tensor, *, signed: bool) -> Tensor:
    """A map in colours whose order also colour-blind and grey-scale readers see.   h w   ->   3 h w, 0 ... 1

    Signed maps are white at zero and as dark on either side; others run from dark at zero to bright at their largest.
    """
    from matplotlib import colormaps

    largest = values.abs().max().clamp_min(1e-12)
    level = values / largest / 2 + 0.5 if signed else values / largest
    colours = colormaps["PuOr_r" if signed else "cividis"](level.double().cpu().numpy())[..., :3]
    return torch.from_numpy(colours).movedim(2, 0).float()
