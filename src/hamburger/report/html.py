"""HTML elements of a report. Text is escaped here, and only here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

STYLE = Path(__file__).with_name("style.css")


class Markup(str):
    """A string that is HTML already and is not escaped."""


CellText = str | Markup | None


def text(value: CellText) -> Markup:
    """Escape `value`; None becomes a dash."""
    return value if isinstance(value, Markup) else Markup(escape("-" if value is None else value))


def number(value: float | None, shown: str) -> Markup:
    """A formatted number, with all its digits in the `value` attribute."""
    return text(None) if value is None else Markup(f'<data value="{value!r}">{escape(shown)}</data>')


def heading(words: str) -> Markup:
    """The heading of a part of a section."""
    return Markup(f"<h3>{escape(words)}</h3>")


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
    "words" is for text. `groups` are headings, by the index of the row they precede.
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


def figure(content: str, caption: CellText) -> Markup:
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return Markup(f"<figure>{content}{below}</figure>")


def side_by_side(*figures: str) -> Markup:
    return Markup(f'<div class="pair">{"".join(figures)}</div>')


def tiles(entries: Sequence[tuple[str, str]], *, large: bool = False) -> Markup:
    """Images with a caption each, as many in a row as fit.   entries: (data URI, caption)"""
    items = "".join(
        f'<div class="tile"><img src="{uri}" alt="{escape(words)}" loading="lazy"><span>{escape(words)}</span></div>'
        for uri, words in entries
    )
    return Markup(f'<div class="tiles{" large" if large else ""}">{items}</div>')


def legend(entries: Sequence[tuple[tuple[int, int, int], str]]) -> Markup:
    items = "".join(
        f'<li><i style="background:rgb({r},{g},{b})"></i>{escape(words)}</li>' for (r, g, b), words in entries
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
