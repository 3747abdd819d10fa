"""The notebooks of docs/tutorials run, and what is stored in them comes from their code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hamburger as hb

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))
import notebooks  # noqa: E402

TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))


@pytest.fixture
def restore_hams():
    names = set(hb.hams.names())
    yield
    for added in set(hb.hams.names()) - names:
        del hb.hams._entries[added]


def test_there_are_four_tutorials():
    assert [path.stem for path in TUTORIALS] == [
        "look-inside",
        "replace-attention",
        "train-on-your-photos",
        "your-own-ham",
    ]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("restore_hams")
def test_notebook_runs_and_has_the_outputs_of_its_code(path, tmp_path, monkeypatch):
    """Numbers may differ between machines; everything else is the same."""
    monkeypatch.chdir(tmp_path)
    stored = notebooks.read_cells(path)
    new = notebooks.run_cells(stored)
    assert notebooks.mask_numbers(new) == notebooks.mask_numbers(stored), f"run `make notebooks`: {path.name}"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_notebook_is_small_and_in_the_layout_that_the_tool_writes(path, tmp_path):
    notebooks.write_cells(tmp_path / path.name, notebooks.read_cells(path))
    assert (tmp_path / path.name).read_text() == path.read_text(), f"run `make notebooks`: {path.name}"
    assert path.stat().st_size < 300_000
    stored = json.loads(path.read_text())
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in stored["cells"]}) == len(stored["cells"])


def test_outputs_are_those_of_jupyter():
    source = "import matplotlib.pyplot as plt\nprint('printed')\nfigure = plt.figure()\n1 + 1"
    outputs = notebooks.run_code(source, {}, 3)
    assert [output["output_type"] for output in outputs] == ["stream", "execute_result", "display_data"]
    assert outputs[0]["text"] == ["printed\n"] and outputs[1]["data"] == {"text/plain": ["2"]}
    assert notebooks.run_code("1 + 1;", {}, 1) == [] and notebooks.run_code("", {}, 1) == []
