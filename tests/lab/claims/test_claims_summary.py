"""The short answers of the documents: five sentences, two counts, units, and marks of weak evidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hamburger_lab.claims import CLAIMS, Results
from hamburger_lab.claims.base import MIN_STEPS, NOT_CONFIRMED
from hamburger_lab.claims.summary import (
    attention_answer,
    attention_table,
    readme_claims,
    topic_counts,
    unconfirmed_table,
)
from hamburger_lab.claims.tables import format_effect, format_verdict, judge_all, split_by_origin

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def verdicts(committed):
    return {claim.id: verdict for claim, verdict in judge_all(committed)}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claims_of_ours_are_those_that_the_paper_does_not_examine(claim):
    assert claim.ours == claim.paper.startswith("not examined")
    assert claim.ours or not re.match("our question|this library", claim.reference)


def test_answer_is_five_sentences_with_numbers_and_units(committed):
    lines = attention_answer(committed).splitlines()
    assert len(lines) == 5
    for line in lines:
        assert re.search(r"\d+(\.\d+)? (points of mIoU|of \d+ sets|to \d|times)", line[3:]), line
        assert len(line.split()) <= 35
    page = (ROOT / "docs/claims.md").read_text()
    assert page.index(lines[0]) < 400  # the answer comes first


def test_answer_follows_the_rows(committed):
    """A loss on CamVid becomes a gain: the worst case is another one, and nothing is behind."""
    assert "behind on 1" in attention_answer(committed)
    rows = committed.files["segmentation_camvid_h200"]
    better = [row | {"miou": row["miou"] + 0.2} if row["context"] == "nmf" else row for row in rows]
    answer = attention_answer(Results(committed.files | {"segmentation_camvid_h200": better}, committed.studies))
    assert "ahead on 1 of 3" in answer and "behind on 0" in answer
    assert "CamVid" not in answer
    assert attention_table(committed).count("CamVid") == 1


def test_paper_and_ours_have_totals_of_their_own(committed):
    paper, ours = (len([c for c in CLAIMS if c.ours == kind]) for kind in (False, True))
    text = topic_counts(committed)
    assert f"| **all** | **{paper}** | **{ours}** |" in text
    rows = [line.split("|")[2:4] for line in text.splitlines() if re.match(r"\| (confirmed|not |inconclusive)", line)]
    assert [sum(map(int, column)) for column in zip(*rows, strict=True)] == [paper, ours]
    topics = [line.split("|")[2:4] for line in text.splitlines() if "generated/claims.md" in line]
    assert [
        sum(int(n) for cell in column for n in re.findall(r"\d+", cell)) for column in zip(*topics, strict=True)
    ] == [
        paper,
        ours,
    ]
    sentence = readme_claims(committed)
    claims, in_two_readings = map(int, re.search(r"\[(\d+) claims of the paper\].*?, (\d+) of them", sentence).groups())
    assert in_two_readings > 0 and claims + in_two_readings == paper
    assert f"have {paper} verdicts" in sentence


def test_html_page_marks_our_questions_and_short_trainings(text):
    table = text.partition('id="summary"')[2].partition("</table>")[0]
    assert table.count("(our question)") == sum(claim.ours for claim in CLAIMS)
    row = table.partition('href="#gradient-vq"')[2].partition("</tr>")[0]
    assert "some trainings collapsed<br>small scale" in row


def test_contradicted_claims_are_all_listed_once_and_the_accuracy_is_shown(committed):
    text = unconfirmed_table(committed)
    theirs, ours = split_by_origin([pair for pair in judge_all(committed) if pair[1].outcome == NOT_CONFIRMED])
    first, second = text.split("Of our own")
    assert all(first.count(f"| {claim.statement} (") == 1 for claim, _ in theirs)
    assert all(second.count(f"| {claim.statement} (") == 1 for claim, _ in ours)
    shown = re.sub(r"(?s)<details>.*?</details>", "", text)
    assert "A Hamburger is as accurate as self-attention" in shown and "clipped" not in shown


def test_effects_state_their_unit(committed):
    for claim, verdict in judge_all(committed):
        unit = verdict.decisive.unit.strip("()")
        assert unit, claim.id
        assert format_effect(verdict).endswith(unit) == (unit != "points"), claim.id
    assert "effect (points of mIoU unless stated)" in unconfirmed_table(committed)


def test_short_trainings_are_marked(committed, verdicts):
    assert "small scale" in format_verdict(verdicts["parts-ham"])
    assert verdicts["generation-sagan"].small_scale and verdicts["inside-direction"].small_scale
    # neither times nor memory nor solves depend on the length of a training
    assert not any(verdicts[name].small_scale for name in ("cost-time", "gradient-memory", "propositions-1"))
    steps = MIN_STEPS
    for name in ("ablation_parts_voc-animals_h200", "segmentation_voc-animals_h200", "segmentation_camvid_h200"):
        rows = [row | {"steps": steps} for row in committed.files[name]]
        committed = Results(committed.files | {name: rows}, committed.studies)
        steps += 1
    longer = {claim.id: verdict for claim, verdict in judge_all(committed)}
    assert not longer["parts-ham"].small_scale and not longer["accuracy-danet"].small_scale
