"""Blocks of the documents that are made from result files: `make docs` writes them, a test compares them.

A page holds `<!-- block: name -->` and `<!-- end -->`; what stands between is this module's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hamburger.analysis import core_page, report
from hamburger.files import write_atomically

BLOCK = re.compile(r"(<!-- block: ([a-z0-9-]+) -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# Block name -> what it is made from, and by what.
BLOCKS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "core-speed": ("core_cpu.jsonl", lambda path: core_page.speed(lines_of(path))),
    "core-table": ("core_cpu.jsonl", lambda path: core_page.table(lines_of(path))),
    "propositions": ("propositions_cpu.json", lambda path: report.markdown(json.loads(path.read_text()))),
}


def render(text: str, results: Path) -> str:
    """The page with every block made anew."""

    def made(match: re.Match[str]) -> str:
        begin, name, _, end = match.groups()
        file, make = BLOCKS[name]
        return f"{begin}{make(results / file).rstrip()}\n{end}"

    return BLOCK.sub(made, text)


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def main() -> None:
    root = Path.cwd()
    for page in pages(root):
        write_atomically(page, render(page.read_text(encoding="utf-8"), root / "results").encode())


if __name__ == "__main__":
    main()
