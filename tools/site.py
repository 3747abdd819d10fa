"""What the documentation site changes in pages and docstrings; `mkdocs.yml` names this file twice.

- Links to files outside docs/ become plain text: the site does not have them.
- `<details>` hold Markdown, which Python-Markdown must be told.
- Lines with `>>>` in docstrings become code blocks.
"""

from __future__ import annotations

import os
import re
from typing import Any

import griffe

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)#]*)(#[^)]*)?\)")
EXAMPLE = re.compile(r"(?m)(?:^(?:>>>|\.\.\.) ?.*\n?)+(?:^\S.*\n?)*")  # with the output behind it


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""

    def keep_inside(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(page.file.src_uri), link[2]))  # noqa: PTH118, PTH120
        return link[1] if target.startswith("..") else link[0]

    return LINK.sub(keep_inside, markdown).replace("<details>", '<details markdown="1">')


class DocstringExamples(griffe.Extension):
    """Turns examples in docstrings into fenced code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(fence, obj.docstring.value)


def fence(example: re.Match[str]) -> str:
    lines = example[0].rstrip("\n").split("\n")
    lines = [line[4:] if line.startswith((">>>", "...")) else f"# {line}" for line in lines]
    return "\n".join(["", "```python", *lines, "```", ""])
