"""Elements of a page: HTML, matplotlib figures as inline SVG, and embedded images.

Text is escaped here, and only here.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

STYLE = Path(__file__).with_name("style.css")

# Okabe and Ito's colour-blind safe palette, without yellow and black, which are invisible on a white or a dark page;
# then three of Tol's
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#AA4499", "#999933", "#44AA99")
BASELINE = "#8A8A8A"
INK = "#123456"  # placeholder for the text colour of the page
WIDTH, HEIGHT = 4.6, 3.0  # inches: 331 points, so that a point is a pixel on a narrow phone
MAX_SIDE = 360  # pixels of the longer side of an embedded image


class Markup(str):
    """A string that is HTML already and is not escaped."""


CellText = str | Markup | None


def text(value: CellText) -> Markup:
    """Escape `value`; None becomes a dash."""
    return value if isinstance(value, Markup) else Markup(escape("-" if value is None else value))


def number(value: float | None, shown: Callable[[float], str]) -> Markup:
    """A number as `shown` formats it, with all its digits in the `value` attribute; None becomes a dash."""
    return text(None) if value is None else Markup(f'<data value="{value!r}">{escape(shown(value))}</data>')


def heading(title: str) -> Markup:
    """The heading of a part of a section."""
    return Markup(f"<h3>{escape(title)}</h3>")


def paragraph(content: CellText, *, kind: str = "") -> Markup:
    return Markup(f'<p class="{kind}">{text(content)}</p>' if kind else f"<p>{text(content)}</p>")


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[CellText]],
    *,
    name: str,
    kind: str = "wide",
    groups: Mapping[int, str] | None = None,
) -> Markup:
    """The first column names the row. `kind`: "wide" scrolls inside its frame, "cards" stacks each row on a phone,
    "text" is for text. `groups` are headings, by the index of the row they precede.
    """
    head = "".join(f'<th scope="col">{text(word)}</th>' for word in header)
    body = []
    for index, (first, *others) in enumerate(rows):
        if groups and index in groups:
            body.append(
                f'<tr class="group"><th scope="rowgroup" colspan="{len(header)}">{text(groups[index])}</th></tr>'
            )
        cells = "".join(
            f'<td data-label="{escape(word)}">{text(cell)}</td>' for word, cell in zip(header[1:], others, strict=True)
        )
        body.append(f'<tr><th scope="row">{text(first)}</th>{cells}</tr>')
    return Markup(
        f'<div class="frame"><table class="{kind}" id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def figure(content: str, caption: str = "") -> Markup:
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return Markup(f"<figure>{content}{below}</figure>")


def side_by_side(*figures: str) -> Markup:
    return Markup(f'<div class="pair">{"".join(figures)}</div>')


def tiles(entries: Sequence[tuple[str, str]], *, large: bool = False) -> Markup:
    """Images with a caption each, as many in a row as fit.   entries: (data URI, caption)"""
    items = "".join(
        f'<div class="tile"><img src="{escape(uri)}" alt="{escape(label)}" loading="lazy">'
        f"<span>{escape(label)}</span></div>"
        for uri, label in entries
    )
    return Markup(f'<div class="tiles{" large" if large else ""}">{items}</div>')


def legend(entries: Sequence[tuple[tuple[int, int, int], str]]) -> Markup:
    items = "".join(
        f'<li><i style="background:rgb({r},{g},{b})"></i>{escape(label)}</li>' for (r, g, b), label in entries
    )
    return Markup(f'<ul class="legend">{items}</ul>')


def collapsible(summary: str, content: str) -> Markup:
    """Content that opens on a click, without a script."""
    return Markup(f"<details><summary>{escape(summary)}</summary>{content}</details>")


def section(name: str, title: str, *content: str) -> Markup:
    return Markup(f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(content)}</section>')


def document(title: str, body: str) -> str:
    """A complete page with its style inside: no external files, no scripts."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>\n{STYLE.read_text(encoding='utf-8')}</style></head>\n"
        f"<body><main>{body}</main></body></html>\n"
    )


# -- figures and images ------------------------------------------------------------------------------------------------


def render_svg(name: str, draw: Callable[[Any], None], *, alt: str, height: float = HEIGHT) -> str:
    """Draw one pair of axes as inline SVG. `name` keeps the ids of several figures on a page distinct."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "text.parse_math": False,  # names may contain dollar signs
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
        canvas = FigureCanvasSVG(Figure(figsize=(WIDTH, height), layout="constrained"))  # needs no display, no pyplot
        axes = canvas.figure.subplots()
        axes.grid(color=INK, alpha=0.12, linewidth=0.7)
        axes.set_axisbelow(True)
        draw(axes)
        file = io.StringIO()
        canvas.figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    # without XML header, name spaces, metadata, fixed size and fonts
    svg = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    box = re.findall(r'viewBox="[^"]*"', svg)[0]
    inside = re.sub(r"font: (?:[^;\"]*? )?([\d.]+px) [^;\"]*", r"font-size: \1", svg[svg.index(">") + 1 :])
    # matplotlib's own ids (figure_1, axes_1 ...) would repeat on the page, and nothing refers to them
    inside = re.sub(r'<g id="[^"]*">', "<g>", inside.replace(INK, "currentColor"))
    return f'<svg role="img" aria-label="{alt}" data-figure="{name}" {box}>{inside}'


def encode_image(image: Tensor, *, photo: bool = False) -> str:
    """The image as a data URI.   3 h w or h w 3, uint8"""
    from PIL import Image

    pixels = image.movedim(0, 2) if image.shape[0] == 3 and image.shape[2] != 3 else image
    file = io.BytesIO()
    kind, options = ("jpeg", {"quality": 85}) if photo else ("png", {"optimize": True})
    Image.fromarray(pixels.cpu().contiguous().numpy()).save(file, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def is_photo(image: Tensor) -> bool:
    """Whether to show the image large and as JPEG; small images are shown pixel by pixel."""
    return max(image.shape) > 128


def shrink(image: Tensor, *, labels: bool = False) -> Tensor:
    """... h w to at most MAX_SIDE pixels a side: by antialiased interpolation, for labels by nearest neighbour."""
    h, w = image.shape[-2:]
    if max(h, w) <= MAX_SIDE:
        return image
    size = (max(1, round(h * MAX_SIDE / max(h, w))), max(1, round(w * MAX_SIDE / max(h, w))))
    how: dict[str, Any] = {"mode": "nearest-exact"} if labels else {"mode": "bilinear", "antialias": True}
    small = F.interpolate(image.reshape(1, -1, h, w).float(), size=size, **how).round().clamp(0, 255)
    return small.reshape(*image.shape[:-2], *size).to(image.dtype)


def colourise(values: Tensor, *, signed: bool) -> Tensor:
    """Colour a map with a colour-blind and greyscale safe colour map.   h w   ->   3 h w, 0 ... 1

    Signed maps are white at zero and equally dark on both sides; others run from dark at zero to bright at the maximum.
    """
    from matplotlib import colormaps

    largest = values.abs().max().clamp_min(1e-12)
    level = values / largest / 2 + 0.5 if signed else values / largest
    colours = colormaps["PuOr_r" if signed else "cividis"](level.cpu().double().numpy())[..., :3]
    return torch.from_numpy(colours).movedim(2, 0).float()
