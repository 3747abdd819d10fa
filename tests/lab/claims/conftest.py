"""Fixtures: the committed results and their HTML page."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist_cache import make_once

from hamburger_lab.claims import Results
from hamburger_lab.claims.page import claims_page

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def committed():
    return Results.read(ROOT / "results")


@pytest.fixture(scope="module")
def text(committed, tmp_path_factory):
    """Return the HTML page of the committed results (about a hundred figures)."""
    return make_once(tmp_path_factory, "claims.html", lambda: claims_page(committed))
