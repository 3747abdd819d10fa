"""The documentation site has every page and every public name, and builds without a broken link."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hamburger as hb

ROOT = Path(__file__).parents[1]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def test_navigation_has_every_page():
    pages = [page for section in SITE["nav"] for part in section.values() for page in part]
    assert sorted(pages) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


def test_reference_has_every_public_name_with_an_example():
    text = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    listed = re.findall(r"^::: hamburger\.(\w+)$", text, re.MULTILINE)
    errors = re.search(r"members: \[(.*)\]", text)[1].split(", ")
    assert sorted({*listed, *errors, "errors"} - {"Interrupted"}) == sorted(hb.__all__)
    assert [name for name in listed if name != "errors" and ">>>" not in getattr(hb, name).__doc__] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs/reference").glob("*.md")), ids=lambda page: page.stem)
def test_page_begins_with_what_it_is_for(page):
    assert page.read_text().splitlines()[2].startswith("After this page you")


@pytest.mark.full
def test_site_builds(tmp_path):
    for package in ("material", "mkdocstrings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip("mkdocs is not installed; pip install -r requirements/docs.txt")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site/reference/layers.html").read_text()
    assert "hamburger.Hamburger" in page and "&gt;&gt;&gt;" not in page
    scripts = re.findall(r'<(?:script|link)[^>]+(?:src|href)="(https?:[^"]+)"', page)
    assert [address for address in scripts if "canonical" not in address] == []  # works offline
