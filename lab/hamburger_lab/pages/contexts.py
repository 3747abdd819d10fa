"""The registry of contexts -> the table of its page."""

from __future__ import annotations

import inspect
from typing import Any

from hamburger.contexts import contexts, create_context
from hamburger_lab.bench.footprint import counts
from hamburger_lab.pages.core import markdown_table

SHAPE = (1, 512, 128, 128)


def table() -> str:
    """Name, first line of its file, options, parameters and multiply-adds at the size of the paper's Table 3."""
    lines = []
    for name in contexts.names():
        constructor: Any = contexts[name]
        page = inspect.getdoc(inspect.getmodule(constructor)) or ""
        header = " ".join(page.split("\n\n")[0].split()).split("). ")[0]  # the paper; what follows is provenance
        header += ")" * (header.count("(") - header.count(")"))
        options = [
            p.name
            for p in inspect.signature(constructor).parameters.values()
            if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "channels"
        ]
        params, macs = counts(lambda name=name: create_context(name, 512), SHAPE)  # type: ignore[misc]
        shown = ", ".join(f"`{option}`" for option in options) or "those of `Hamburger`"
        lines.append([f"`{name}`", header.rstrip("."), shown, f"{params:,}", f"{macs / 1e9:.2f}"])
    return markdown_table(["name", "what", "options", "parameters", "MACs, 10^9"], lines)
