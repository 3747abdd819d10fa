"""Markdown tables of the documents."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; every line has one text per column."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *lines))


def collapsed(title: str, text: str, *, opened: bool = False) -> str:
    """Return Markdown that shows `text` when the reader clicks on the title, or at first if `opened`."""
    return f"<details{' open' * opened}><summary>{title}</summary>\n\n{text}\n\n</details>"
