"""What the documentation site changes in pages and docstrings; `mkdocs.yml` names this file twice.

- Every notebook becomes a page; links to notebooks lead to these pages.
- Links to files outside docs/ become plain text: the site does not have them.
- `<details>` hold Markdown, which Python-Markdown must be told.
- Lines with `>>>` in docstrings become code blocks; shapes, which follow a sentence after three spaces, start a line.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

sys.path.append(str(Path(__file__).parent))
from notebooks import to_markdown

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)#]*)(#[^)]*)?\)")
SHAPES = re.compile(r"(?<=[a-z)`]\.)   (?=[a-z0-9*`])")
EXAMPLE = re.compile(r"(?m)(?:^(?:>>>|\.\.\.) ?.*\n?)+(?:^\S.*\n?)*")  # with the output behind it


def on_files(files: Files, *, config: Any) -> None:
    """Called by mkdocs with all files of docs/; the notebooks stay among them, for download."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        name = Path(file.src_uri)
        download = f'<a href="{name.name}" download>Download this notebook</a>'
        text = f"{to_markdown(Path(file.abs_src_path))}\n{download}\n"
        files.append(File.generated(config, name.with_suffix(".md").as_posix(), content=text))


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""

    def keep_inside(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(page.file.src_uri), link[2]))  # noqa: PTH118, PTH120
        return link[1] if target.startswith("..") else link[0]

    markdown = re.sub(r"(\]\([^):]+)\.ipynb\)", r"\1.md)", markdown)
    return re.sub(r"<details( open)?>", r'<details markdown="1"\1>', LINK.sub(keep_inside, markdown))


class DocstringExamples(griffe.Extension):
    """Turns examples in docstrings into fenced code, and shapes into lines of their own."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = SHAPES.sub("<br>", obj.docstring.value).replace("   ->   ", " → ")
            obj.docstring.value = EXAMPLE.sub(fence, text)


def fence(example: re.Match[str]) -> str:
    lines = example[0].rstrip("\n").split("\n")
    lines = [line[4:] if line.startswith((">>>", "...")) else f"# {line}" for line in lines]
    return "\n".join(["", "```python", *lines, "```", ""])
