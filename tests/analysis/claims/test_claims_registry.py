"""Every claim keeps its contract; verdicts are those of the committed rows; the page needs nothing but itself."""

from __future__ import annotations

import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hamburger.analysis.claims import CLAIMS, Results
from hamburger.analysis.claims.base import CONFIRMED, NOT_CONFIRMED, NOT_RUN, WORDS
from hamburger.analysis.claims.page import page
from hamburger.analysis.claims.registry import FAMILIES
from hamburger.analysis.claims.tables import PRINTED, as_json, as_rows, commands, judged, markdown
from hamburger.recipes.ablations import ablations
from hamburger.recipes.find import find_recipe

ROOT = Path(__file__).parents[3]
FIELDS = {"id", "statement", "paper", "here", "effect", "ci", "n_seeds", "verdict"}


@pytest.fixture(scope="module")
def committed():
    return Results.of(ROOT / "results")


ABLATED = [claim for claim in CLAIMS if claim.command.startswith("ham ablate")]
INSIDE = {"rank_before": 2.0, "rank_after": 1.0, "silent_before": 0.0, "silent_after": 0.1, "cosine_one_step": 0.6}


def rows_of(claim, scores):
    """Rows of the grid that the claim's own command runs, four seeds; `scores`: cell -> mIoU in points, else 50."""
    name = shlex.split(claim.command)[2]
    common = {"recipe": "voc-animals", "steps": 9, "hardware": "H", "device": "cuda", "peak_mb": 1.0, **INSIDE}
    rows = [
        common | {"cell": cell, "seed": seed, "miou": scores.get(cell, 50.0) / 100}
        for cell in ablations.create(name, find_recipe("voc-animals"))
        for seed in range(4)
    ]
    return Results({f"ablation_{name}_x": rows})


def one_difference(claim):
    findings = claim.judge(rows_of(claim, {})).trials[0].findings
    return len(findings) == 1 and " - " in findings[0].what


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_says_what_it_must(claim):
    for field in ("statement", "reference", "paper", "test", "command"):
        assert getattr(claim, field).strip(), field
    assert claim.family in FAMILIES
    assert claim.statement.endswith(".")
    assert claim.command.startswith("ham ")
    assert claim.judge(Results({})).word == NOT_RUN


def test_ids_are_given_once():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize("claim", ABLATED, ids=lambda claim: claim.id)
def test_a_claim_finds_all_its_cells_in_the_grid_of_its_command(claim):
    (trial,) = claim.judge(rows_of(claim, {})).trials
    assert not trial.missing


@pytest.mark.parametrize("claim", [*filter(one_difference, ABLATED)], ids=lambda claim: claim.id)
def test_scores_on_the_papers_side_confirm_and_on_the_other_refute(claim):
    ours, theirs = claim.judge(rows_of(claim, {})).telling.what.split(" - ")
    assert claim.judge(rows_of(claim, {ours: 54.0})).word == CONFIRMED
    assert claim.judge(rows_of(claim, {theirs: 54.0})).word == NOT_CONFIRMED


def test_the_papers_tables_speak_of_cells_that_exist():
    for name, printed in PRINTED.items():
        assert set(printed) <= set(ablations.create(name, find_recipe("voc-animals")))


def test_committed_verdicts_are_those_of_the_committed_rows(committed):
    assert as_json(judged(committed)) == (ROOT / "results" / "claims.json").read_text(), "run `make docs`"
    rows = json.loads((ROOT / "results" / "claims.json").read_text())
    for row in rows:
        assert not FIELDS - set(row)
        assert row["verdict"] in WORDS
        assert (row["effect"] is None) == (row["n_seeds"] == 0) == (row["verdict"] == NOT_RUN)


def test_growth_is_judged_by_its_exponent():
    def rows(power):
        return [
            {
                "module": module,
                "dtype": "float32",
                "n": n,
                "hardware": "H",
                **dict.fromkeys(fields, (n / 1024) ** power),
            }
            for module in ("nmf", "vq", "cd")
            for n in (1024, 65536, 262144)
            for fields in [("infer_ms", "train_ms", "infer_mb", "train_mb")]
        ]

    words = {}
    for power in (1.0, 2.0):
        results = Results({"table3_h200": rows(power)})
        words[power] = {claim.id: claim.judge(results) for claim in CLAIMS if claim.family == "cost"}
    assert words[1.0]["cost-linear-time"].word == words[1.0]["cost-linear-memory"].word == CONFIRMED
    assert words[2.0]["cost-linear-time"].word == words[2.0]["cost-linear-memory"].word == NOT_CONFIRMED
    assert words[2.0]["cost-linear-time"].telling.effect == pytest.approx(2.0)


def test_markdown_and_commands(committed):
    text = markdown(committed)
    assert all(claim.statement in text for claim in CLAIMS)
    empty = commands(Results({}))
    assert all(claim.command in empty for claim in CLAIMS)


def test_an_empty_folder_is_not_run_everywhere(tmp_path):
    assert {row["verdict"] for row in as_rows(judged(Results.of(tmp_path)))} == {NOT_RUN}


class Outside(HTMLParser):
    """What a browser would fetch, and ids."""

    def __init__(self):
        super().__init__()
        self.fetched, self.ids, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.fetched += [v for k, v in attrs if k in ("src", "srcset", "data") and not (v or "").startswith("data:")]
        self.fetched += [values["href"]] if tag == "link" else []
        self.fetched += [tag] if tag in ("script", "iframe") else []
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if tag == "a" else []


def test_the_page_needs_nothing_else(committed):
    text = page(committed)
    seen = Outside()
    seen.feed(text)
    assert not seen.fetched
    assert not re.findall(r"url\((?!#|'#|\"#)|@import|https?://", text)
    assert "width=device-width" in text
    assert all(link.startswith("#") and link[1:] in seen.ids for link in seen.links)
    assert {claim.id for claim in CLAIMS} <= set(seen.ids)
    assert text.count("<svg") >= sum(bool(verdict.trials) for _, verdict in judged(committed))
