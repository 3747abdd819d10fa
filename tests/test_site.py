"""The documentation site has every page and every public name, and builds without a broken link."""

from __future__ import annotations

import html
import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hamburger as hb
import hamburger.checkpoints
import hamburger.inference
import hamburger.inspect
import hamburger.segmentation

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))
import notebooks  # noqa: E402

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


PAGES = sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "docs").rglob("*.ipynb"))


def read(page):
    return notebooks.to_markdown(page) if page.suffix == ".ipynb" else page.read_text()


def pages_in(part):
    """The pages of a part of the navigation: a path, a list, or a title with a list."""
    if isinstance(part, str):
        return [part]
    return [page for each in (part.values() if isinstance(part, dict) else part) for page in pages_in(each)]


def test_navigation_has_every_page():
    expected = [path.relative_to(ROOT / "docs").with_suffix(".md").as_posix() for path in PAGES]
    assert sorted(pages_in(SITE["nav"])) == sorted(expected)


def test_reference_has_every_public_name_with_an_example():
    text = {page.stem: page.read_text() for page in (ROOT / "docs/reference").glob("*.md")}
    entries = re.findall(
        r"^::: (hamburger.*)\n(?: +options: \{(?:heading: (.*), toc_label.*)?\})?", "".join(text.values()), re.M
    )
    listed = {name for path, heading in entries for name in re.findall(r"hamburger\.(\w+)(?=[,\"]|$)", heading or path)}
    errors = re.search(r"members: \[(.*)\]", text["errors"])[1].split(", ")
    assert {*hb.__all__} - listed - {*errors} == set()
    ours = {name for name in dir(hb) if getattr(getattr(hb, name), "__module__", "").startswith("hamburger")}
    assert {name for name in ours if not name.startswith("_")} <= {*hb.__all__}
    kinds = [name for name in hb.__all__ if name not in errors and name != "errors"]
    assert [name for name in kinds if ">>>" not in getattr(hb, name).__doc__] == []


@pytest.mark.parametrize(
    "package",
    [hamburger.inspect, hamburger.segmentation, hamburger.checkpoints, hamburger.inference],
    ids=lambda package: package.__name__,
)
def test_functions_of_subpackages_are_in_the_reference_and_used_elsewhere(package):
    reference, others = (
        "".join(read(p) for p in PAGES if (p.parent.name == "reference") == kind) for kind in (True, False)
    )
    members = re.search(rf"^::: {package.__name__}\n.*\n +members: \[(.*)\]", reference, re.MULTILINE)[1].split(", ")
    assert sorted(members) == sorted({*package.__all__} - {*hb.__all__})
    functions = [name for name in members if inspect.isfunction(getattr(package, name))]
    assert [name for name in functions if not re.search(rf"\b{name}\b", others)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_begins_with_what_it_is_for(page):
    first = read(page).split("# ", 1)[1].split("\n\n", 2)[1]
    assert first.startswith("After this page you")


PHONE = 390  # pixels
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MOST_WORDS, MOST_WORDS_WITH_CODE = 820, 900  # of a page, of a notebook


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name != "reference"], ids=lambda page: page.stem)
def test_page_fits_about_two_screens(page):
    """Not counted: what is collapsed, and the outputs of notebooks. Tables and code are counted."""
    notebook = page.suffix == ".ipynb"
    text = notebooks.to_markdown(page, outputs=False) if notebook else page.read_text()
    shown = re.sub(r"(?s)<details>.*?</details>", "", text)
    assert len(shown.split()) < (MOST_WORDS_WITH_CODE if notebook else MOST_WORDS)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site, and return its folder."""
    for package in ("material", "mkdocstrings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip("mkdocs is not installed; pip install -r requirements/docs.txt")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.full
def test_site_has_the_reference_and_works_offline(site):
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    shown = " ".join(html.unescape(re.sub(r"<[^>]+>", "", pages)).split())
    for name in set(hb.__all__) - {"errors"}:  # a name shared with a module must not show the module
        lead = re.split("\n\n|   ", inspect.getdoc(getattr(hb, name)))[0].replace("`", "")
        assert " ".join(lead.split()) in shown, name
    assert not re.search("as_ham|with_authors_version|restore_attention", shown)  # helpers in these modules
    page = (site / "reference/layers.html").read_text()
    assert "hamburger.Hamburger" in page and "&gt;&gt;&gt;" not in page
    scripts = re.findall(r'<(?:script|link)[^>]+(?:src|href)="(https?:[^"]+)"', page)
    assert [address for address in scripts if "canonical" not in address] == []  # works offline


@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("playwright") is None or CHROMIUM is None,
    reason="Playwright or Chromium is not installed; make test-app",
)
def test_no_page_is_wider_than_a_phone(site):
    """Pages with the widest tables, code and signatures, everything unfolded."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": PHONE, "height": 844})
        for name in (
            "claims",
            "generated/claims",
            "table3",
            "design/block",
            "tutorials/look-inside",
            "reference/layers",
        ):
            tab.goto((site / f"{name}.html").as_uri())
            tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
            assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE, name
        browser.close()
