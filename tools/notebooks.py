"""Run the notebooks of docs/tutorials, store what they print and draw, and turn them into pages of the site.

    python tools/notebooks.py docs/tutorials/*.ipynb

`make notebooks` calls this after an edit in Jupyter or in an editor. The cells run in this process, so neither Jupyter
nor a kernel is needed. As in Jupyter, a cell's outputs are what it prints, the value of its last expression and its
pyplot figures.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of a notebook, each source as one string."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


def run_cells(cells: list[Cell]) -> list[Cell]:
    """Run all code cells in order and return the cells with new outputs."""
    import matplotlib

    matplotlib.use("Agg")
    take_figures()  # those of a run that failed
    scope: dict[str, Any] = {"__name__": "__main__"}
    done, number = [], 0
    for cell in cells:
        if cell["cell_type"] == "code":
            number += 1
            outputs = run_code(cell["source"], scope, number)
            cell = {**cell, "outputs": outputs, "execution_count": number}
        done.append(cell)
    return done


def run_code(source: str, scope: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run one cell and return its outputs in the notebook format."""
    body = ast.parse(source).body
    shown = body and isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";")  # as in IPython
    last = body.pop() if shown else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), scope)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), scope)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(True)}
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return outputs + [
        {"output_type": "display_data", "metadata": {}, "data": {"image/png": image}} for image in take_figures()
    ]


def take_figures() -> list[str]:
    """Return the open pyplot figures as PNG in base64, and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    images = []
    for number in pyplot.get_fignums() if pyplot else ():
        png = io.BytesIO()
        pyplot.figure(number).savefig(png, format="png", dpi=90, bbox_inches="tight")
        images.append(base64.b64encode(png.getvalue()).decode())
        pyplot.close(number)
    return images


def write_cells(path: Path, cells: list[Cell]) -> None:
    """Write a notebook in one fixed layout, so that differences between versions stay small."""
    stored = [
        {
            "cell_type": cell["cell_type"],
            "id": f"cell-{number}",
            "metadata": {},
            "source": cell["source"].splitlines(True),
            **({k: cell[k] for k in ("execution_count", "outputs")} if cell["cell_type"] == "code" else {}),
        }
        for number, cell in enumerate(cells, 1)
    ]
    notebook = {"cells": stored, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def to_markdown(path: Path, *, outputs: bool = True) -> str:
    """Return the notebook as a Markdown page; figures are part of the page."""
    parts = []
    for cell in read_cells(path):
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            continue
        parts.append(f"```python\n{cell['source']}\n```")
        for output in cell["outputs"] if outputs else ():
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![figure drawn by the code above](data:image/png;base64,{data['image/png']})")
            else:
                text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
                parts.append(f'```text title="output"\n{text}\n```')
    return "\n\n".join(parts) + "\n"


def mask_numbers(cells: list[Cell]) -> list[list[str]]:
    """Return the outputs of every code cell with "#" for numbers, which differ between machines."""
    masked = []
    for cell in cells:
        texts = []
        for output in cell.get("outputs", ()):
            text = "".join(output.get("text", output.get("data", {}).get("text/plain", "figure")))
            texts.append(re.sub(r"[ ]+", " ", re.sub(r"-?\d+(\.\d+)?(e[-+]\d+)?", "#", text)))
        masked.append(texts)
    return masked


def main() -> None:
    for path in [Path(argument).resolve() for argument in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            cells = run_cells(read_cells(path))
        write_cells(path, cells)
        sys.stderr.write(f"{path.name}: {os.path.getsize(path) // 1024} KiB\n")  # noqa: PTH202


if __name__ == "__main__":
    main()
