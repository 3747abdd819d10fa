"""Code in README and docs runs, links exist, generated blocks are current."""

from __future__ import annotations

import csv
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

import hamburger as hb
from hamburger_lab.pages.documents import generated_files, render

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))
import notebooks  # noqa: E402

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "results/README.md",
]
ALL = [*PAGES, *sorted((ROOT / "docs").rglob("*.ipynb"))]  # tests/test_notebooks.py runs the code of the notebooks


def read(page):
    return notebooks.to_markdown(page, outputs=False) if page.suffix == ".ipynb" else page.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = hb.hams.names()
    scope = {}
    try:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            exec(compile(block, page.name, "exec"), scope)
    finally:
        for added in set(hb.hams.names()) - set(names):
            del hb.hams._entries[added]
    torch._dynamo.reset()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_generated_blocks_match_the_committed_results(page):
    assert render(page.read_text(), ROOT / "results") == page.read_text(), "run `make pages`"


def test_changed_block_is_regenerated():
    page = (ROOT / "docs/benchmarks.md").read_text()
    assert "<!-- block: core-speed -->" in page
    broken = page.replace("| nmf | 1,024 |", "| nmf | 1,025 |")
    assert broken != page
    assert render(broken, ROOT / "results") == page


@pytest.mark.parametrize("page", ALL, ids=lambda p: p.name)
def test_links_point_to_existing_files(page):
    for target in re.findall(r"\]\(([^)#]+)", read(page)):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_is_short_and_names_no_number_of_claims_by_hand():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 120
    typed = re.sub(r"(?s)<!-- block: .*?<!-- end -->", "", readme)
    assert re.search(r"\d+ claims", readme) and not re.search(r"\d+ claims", typed)


# names of torch and other libraries, and of files a command writes
FOREIGN = {
    "roi_align",
    "MyContext",
    "leaf_modules",
    "set_grad_checkpointing",
    "fully_shard",
    "ignored_params",
    "detect_anomaly",
}


@pytest.fixture(scope="module")
def known_names():
    paths = [p for d in ("src", "lab", "tests", "tools", "examples", "results") for p in (ROOT / d).rglob("*")]
    texts = [
        path.read_text() for path in (*paths, ROOT / "pyproject.toml") if path.suffix in (".py", ".jsonl", ".toml")
    ]
    return {word for text in texts for word in re.findall(r"\w+", text)} | {path.stem for path in paths} | FOREIGN


@pytest.mark.parametrize("page", ALL, ids=lambda p: p.name)
def test_identifiers_exist(page, known_names):
    """Names with an underscore or inner capitals in `code`; files such as `a_colours.png` are examples."""
    prose = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    spans = [span for span in re.findall(r"`([^`\n]+)`", prose) if not span.endswith((".png", ".pfm", ".jpg"))]
    names = {name for span in spans for name in re.findall(r"(?<![\w/-])[A-Za-z]\w*[A-Za-z0-9]\b", span)}
    identifiers = {name for name in names if "_" in name or re.match("[A-Z][a-z]+[A-Z]", name)}
    assert identifiers - known_names == set()


def test_generated_files_match_the_committed_results():
    for path, text in generated_files(ROOT).items():
        assert path.read_text() == text, f"run `make pages`: {path.name}"


def test_every_result_file_has_its_command_in_the_readme():
    row = r"^\| `([^`]+)` \| .*`(?:ham|python lab/experiments/\w+\.py|python -m hamburger_lab\.\w+) "
    patterns = re.findall(row, (ROOT / "results/README.md").read_text(), flags=re.MULTILINE)
    files = [path.name for path in (ROOT / "results").iterdir() if path.name != "README.md"]
    assert [name for name in files if not any(fnmatch(name, pattern) for pattern in patterns)] == []
    announced = {"shipped_weights.jsonl"}  # its line says that the file comes later
    assert [name for name in {*patterns} - announced if not any(fnmatch(file, name) for file in files)] == []


def test_ablations_csv_has_every_ablation_row():
    with (ROOT / "results" / "ablations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(path.read_text().splitlines()) for path in (ROOT / "results").glob("ablation_*.jsonl"))
    assert {"ablation", "cell", "seed", "recipe_hash", "commit", "hardware", "miou", "loss", "seconds"} <= set(rows[0])
    assert all(0 < float(row["miou"]) < 1 for row in rows if row["miou"])
