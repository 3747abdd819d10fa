"""The HTML page of claims: caveats, tables, figures; it is self-contained."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from claim_rows import two_sets

from hamburger_lab.claims import CLAIMS, Results
from hamburger_lab.claims.base import NOT_RUN, OUTCOMES
from hamburger_lab.claims.page import PLACES as IN_PAPER
from hamburger_lab.claims.page import SIGNS, caution_note, claims_page, select_drawn
from hamburger_lab.claims.registry import FAMILIES
from hamburger_lab.claims.tables import as_rows, claims_markdown, judge_all, result_tables, shared_trainings


def test_detectable_effect_is_half_the_interval(committed, text):
    rows = as_rows(judge_all(committed))
    assert all((row["detectable"] is not None) == (row["ci"] is not None) for row in rows if row["unit"] == "points")
    row = next(row for row in rows if row["id"] == "gradient-cd")
    assert row["detectable"] == pytest.approx((row["ci"][1] - row["ci"][0]) / 2, rel=1e-2)
    assert "detectable" in claims_markdown(committed) and "detectable" in text


def test_verdicts_that_share_trainings_are_listed(committed, text):
    result = shared_trainings(judge_all(committed))
    label = next(name for name in result if name.startswith("nmf of voc-animals, 400"))
    cells, claims = result[label]
    assert {"whole", "nmf-one-step", "nmf-random"} <= set(cells)
    assert {"gradient-nmf", "parts-upper", "init-random"} <= set(claims)
    article = text.partition('<article id="parts-upper">')[2].partition("</article>")[0]
    assert f"{label}, as in" in article and 'href="#gradient-nmf"' in article
    assert "Verdicts that share trainings" in claims_markdown(committed)


def test_crowded_forest_plot_draws_the_weakest_of_every_ham(committed, text):
    verdict = next(verdict for claim, verdict in judge_all(committed) if claim.id == "steps-same")
    every = [("here", finding) for finding in verdict.trials[0].findings]
    drawn = select_drawn(every)
    assert len(every) == 36 and len(drawn) == 24
    for ham in ("nmf", "vq", "cd"):
        findings = sorted((f for _, f in every if f.label.startswith(ham)), key=lambda f: f.support)
        kept = [f for _, f in drawn if f.label.startswith(ham)]
        assert kept == findings[: len(kept)] and len(kept) == 8
    assert [f.support for _, f in drawn] == sorted(f.support for _, f in drawn)
    figure = text.partition('data-figure="steps-same"')[2].partition("</svg>")[0]
    assert all(f">{ham}-k" in figure for ham in ("nmf", "vq", "cd"))


def test_forest_plot_draws_the_deciding_interval(committed, text):
    result = {claim.id: verdict for claim, verdict in judge_all(committed)}
    worst = result["gradient-more-terms-code"].decisive
    assert worst.refuting[0] < worst.interval[0] and worst.refuting[1] > worst.interval[1]
    assert worst.detectable == pytest.approx((worst.refuting[1] - worst.refuting[0]) / 2)  # it refutes
    figure = text.partition('data-figure="gradient-more-terms-code"')[2].partition("</figure>")[0]
    drawn = sum(len(trial.findings) for trial in result["gradient-more-terms-code"].trials)
    assert figure.count("stroke-width: 0.9") == drawn
    assert "at the edge it continues" in figure


class Outside(HTMLParser):
    """Collects what a browser would fetch, and ids."""

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


def test_every_kind_of_figure_is_on_the_page(text):
    for drawn in (
        "spectra-",
        "ranks-",
        "cosine-",
        "norm-",
        "steps-nmf-",
        "steps-cd-",
        "ms-gradients",
        "bars-ablation",
    ):
        assert f'data-figure="{drawn}' in text, drawn
    assert "data:image/png" in text


def test_html_page_is_self_contained(committed, text):
    seen = Outside()
    seen.feed(text)
    assert not seen.fetched
    assert not re.findall(r"url\((?!#|'#|\"#)|@import|https?://", text)
    assert "width=device-width" in text
    assert all(link.startswith("#") and link[1:] in seen.ids for link in seen.links)
    assert {claim.id for claim in CLAIMS} <= set(seen.ids)
    assert text.count("<svg") >= sum(bool(verdict.trials) for _, verdict in judge_all(committed))


def test_html_page_begins_with_its_caveats(committed, text):
    head = text.partition("<nav")[0]
    assert "some hundred photographs" in head and "1 of these verdicts is based on generated scenes alone" in head
    scenes = judge_all(Results({name: rows for name, rows in committed.files.items() if "patchwork" in name}))
    weak = sum(verdict.generated for _, verdict in scenes)
    note = caution_note(scenes)
    assert weak and f"{weak} of these verdicts are based on generated scenes alone" in note and "weak test" in note
    assert 'href="#propositions-1"' in note  # its study is missing
    for claim, verdict in judge_all(committed):
        assert (f'href="#{claim.id}"' in head) == (verdict.outcome == NOT_RUN)


def test_forest_plot_marks_the_threshold(committed, text):
    """A cosine of 0.3 needs its threshold."""
    limits = {
        claim.id: {f.limit for t in verdict.trials for f in t.findings} for claim, verdict in judge_all(committed)
    }
    assert all(None not in result for result in limits.values())
    assert limits["angles-input"] == {0.5}
    assert limits["cost-time"] == limits["propositions-1"] == limits["inside-attention-rank"] == {1.0}
    assert [*limits["inside-spectrum"]] == [pytest.approx(1.05)]
    assert limits["inside-silent"] == {1.0}
    assert limits["cost-linear-time"] == {1.1}
    assert limits["cost-gradient-growth"] == {1.05, 1.5}
    drawn = {name: text.partition(f'data-figure="{name}"')[2].partition("</svg>")[0] for name in limits}
    assert ">0.5<" in drawn["angles-input"] and "cosine at the input" in drawn["angles-input"]
    assert "r of the ham / values for 90 %" in drawn["inside-attention-rank"]
    assert [name for name, figure in drawn.items() if "share of solves" in figure] == [
        name for name in limits if name.startswith("propositions")
    ]


def test_photographs_come_before_generated_scenes():
    (sheet,) = result_tables(two_sets("parts", ("whole", "without-ham")), "parts")
    assert sheet.header == ["cell", "the paper, Table 2", "voc-animals, 9 steps, H200", "patchwork, 9 steps, CPU"]
    (sheet,) = result_tables(two_sets("dictionary", ("nmf", "nmf-drawn1")), "dictionary")
    assert sheet.header[1].startswith("voc-animals")  # no column for a paper that has no table of it


def test_heads_of_two_widths_have_separate_tables():
    result = result_tables(
        two_sets("latent", ("d64-r8", "d8-r1"), here=lambda cell: {"d64-r8": "d512-r64"}.get(cell, "d64-r8")), "latent"
    )
    assert [[line[0] for line in sheet.lines] for sheet in result] == [["d512-r64", "d64-r8"], ["d64-r8", "d8-r1"]]
    assert [sheet.title.partition(",")[0] for sheet in result] == ["voc-animals", "patchwork"]


def test_steps_table_has_training_in_lines_and_evaluation_in_columns():
    first, second = result_tables(two_sets("steps", ("nmf-k6", "nmf-k6-at50", "nmf-k8")), "steps")
    assert first.header == ["trained with", "K = 6", "K = 8", "K = 50", "seeds"]
    assert first.lines == [
        ["nmf, K = 6", "50.0 ± 0.0", "", "50.0 ± 0.0", "3"],
        ["nmf, K = 8", "", "50.0 ± 0.0", "", "3"],
    ]
    assert (first.title.split(",")[0], second.title.split(",")[0]) == ("voc-animals", "patchwork")


def test_overview_has_a_mark_for_every_claim(committed, text):
    head = text.partition('id="summary"')[0]
    for claim, verdict in judge_all(committed):
        link = re.search(
            rf'<a class="mark([^"]*)" href="#{claim.id}" title="([^"]*)" aria-label="([^"]*)">(.)</a>', head
        )
        assert link, claim.id
        assert link[1].split()[-1] == verdict.outcome.replace(" ", "-") and link[4] == SIGNS[verdict.outcome]
        assert ("weak" in link[1]) == verdict.generated
        assert link[2] == link[3] and link[3].startswith(f"{claim.id}: {verdict.outcome}")
    assert list(IN_PAPER) == list(FAMILIES)
    assert text.count('class="group"') == len(FAMILIES)


def test_trials_that_do_not_decide_say_so():
    results = two_sets("parts", ("whole", "without-ham"))
    article = claims_page(results).partition('<article id="parts-ham">')[2].partition("</article>")[0]
    photographs, scenes = (line for line in article.split("<tr>") if "9 steps" in line)
    assert "photographs decide" in scenes and "photographs decide" not in photographs
    alone = claims_page(Results({name: rows for name, rows in results.files.items() if "patchwork" in name}))
    article = alone.partition('<article id="parts-ham">')[2].partition("</article>")[0]
    assert article and "photographs decide" not in article


def test_forest_plot_distinguishes_runs_of_one_recipe():
    results = two_sets("parts", ("whole", "without-ham"))
    longer = [row | {"steps": 99} for row in results.files["ablation_parts_voc-animals_x"]]
    text = claims_page(Results(results.files | {"ablation_parts_voc-animals_y": longer}))
    drawn = text.partition('data-figure="parts-ham"')[2].partition("</svg>")[0]
    assert "voc-animals, 9 steps" in drawn and "voc-animals, 99 steps" in drawn


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_colours_have_enough_contrast(text, scheme):
    """WCAG requires a contrast of at least 4.5 for text of that size."""
    block = re.findall(r":root \{(.*?)\}", text, flags=re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block))
    for name in ("ink", "soft", "accent", "yes", "no", "open"):
        for below in ("page", "card"):
            dark, light = sorted((luminance(colours[name]), luminance(colours[below])))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, below)
    for word in OUTCOMES:
        assert re.search(rf"\.{word.replace(' ', '-')}\b[^{{]*\{{ --tone: var\(--(yes|no|open)\)", text)
