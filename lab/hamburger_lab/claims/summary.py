"""The top of the page: what to be careful about, every verdict as a mark, and all of them as a table."""

from __future__ import annotations

from itertools import groupby

from hamburger.report.html import Cell, Markup, paragraph, table, text
from hamburger_lab.claims.base import CONFIRMED, INCONCLUSIVE, NOT_CONFIRMED, NOT_RUN, Claim, Verdict
from hamburger_lab.claims.registry import FAMILIES
from hamburger_lab.claims.tables import Judged, effect, power

COLOURS = {CONFIRMED: "#009E73", NOT_CONFIRMED: "#D55E00", INCONCLUSIVE: "#8A8A8A", NOT_RUN: "#8A8A8A"}  # of figures
SIGNS = {CONFIRMED: "✓", NOT_CONFIRMED: "✗", INCONCLUSIVE: "?", NOT_RUN: "-"}  # for readers who see no colours
PLACES = {  # in the paper
    **{"gradient": "Table 1, section 2.3", "angles": "section 2.3", "parts": "Table 2", "accuracy": "Tables 4 and 5"},
    **{"init": "Table 8", "dictionary": "not in the paper", "temperature": "Table 9", "latent": "Fig. 3"},
    **{"steps": "Figs. 4 and 7 to 9", "inside": "Figs. 5 and 6, section 2.3", "cost": "Table 3, section 2.3"},
    "propositions": "Propositions 1 to 3",
}
HEADER = ("claim", "verdict", "effect, 95 % interval", "could tell", "seeds")


def caution(found: Judged) -> Markup:
    """What a reader must know before the first verdict: of which scale, how weak a test, what was not run."""
    scale = (
        "Networks are trained for some hundred steps on some hundred photographs here, for 30,000 steps on VOC in the "
        "paper: a verdict speaks of this scale, and small effects mostly cannot be told at it. "
    )
    weak = sum(verdict.generated for _, verdict in found)
    left = [claim.id for claim, verdict in found if verdict.word == NOT_RUN]
    links = ", ".join(f'<a href="#{name}">{name}</a>' for name in left)
    said = (
        f"{weak} of these verdicts rest on generated scenes alone, and say so: tiny networks, a few hundred steps, "
        "scenes of 64 x 64 pixels whose difficulty was set by looking at the scores of the hams. That is a weak "
        "test of what the paper says of photographs, in either direction. "
    )
    not_run = f"Not run: {links}; the command stands under each. " if left else ""
    return paragraph(Markup(scale + (said if weak else "") + not_run), kind="note")


def badge(word: str) -> Markup:
    return Markup(f'<span class="badge {_kind(word)}">{word}</span>')


def overview(found: Judged) -> Markup:
    """Where to go, and how each claim fared: a mark for each, by topic."""
    lines = []
    for family, title in FAMILIES.items():
        marks = "".join(mark(claim, verdict) for claim, verdict in found if claim.family == family)
        topic = f'<a href="#{family}">{text(title)}</a> <span class="soft">{PLACES[family]}</span>'
        lines.append(f'<li><span>{topic}</span><span class="marks">{marks}</span></li>')
    signs = [f'<span class="mark {_kind(word)}">{sign}</span> {word}' for word, sign in SIGNS.items()]
    if any(verdict.generated for _, verdict in found):
        signs.append(f'<span class="mark weak {_kind(INCONCLUSIVE)}">?</span> dashed: on generated scenes alone')
    legend = paragraph(Markup(" &ensp; ".join(f'<span class="whole">{sign}</span>' for sign in signs)), kind="soft")
    return Markup(f'<nav class="overview" aria-label="topics and verdicts"><ul>{"".join(lines)}</ul></nav>{legend}')


def mark(claim: Claim, verdict: Verdict) -> str:
    said = text(f"{claim.id}: {', '.join(filter(None, (verdict.word, verdict.basis)))}. {claim.statement}")
    weak = " weak" * verdict.generated
    return (
        f'<a class="mark{weak} {_kind(verdict.word)}" href="#{claim.id}" title="{said}" aria-label="{said}">'
        f"{SIGNS[verdict.word]}</a>"
    )


def summary(found: Judged) -> Markup:
    """All verdicts in one table, topic by topic."""
    rows: list[list[Cell]] = [
        [
            Markup(f'<a href="#{claim.id}">{claim.id}</a><br><span>{text(claim.statement)}</span>'),
            Markup(f'<span class="whole">{badge(verdict.word)}{"<br>" * bool(verdict.basis)}{verdict.basis}</span>'),
            size(verdict),
            power(verdict),
            str(verdict.seeds or ""),
        ]
        for claim, verdict in found
    ]
    groups, at = {}, 0
    for family, own in groupby(found, key=lambda one: one[0].family):
        groups[at] = FAMILIES[family]
        at += len(list(own))
    return table(HEADER, rows, name="summary", kind="cards verdicts", groups=groups)


def size(verdict: Verdict) -> Cell:
    """The effect, below it its interval, and its unit where that is not points of mIoU."""
    telling = verdict.telling
    if telling is None:
        return Markup()
    value, _, interval = effect(verdict).partition(" ")
    unit = "" if telling.unit == "points" else telling.unit.strip("()")
    lines = "<br>".join(f'<span class="whole">{text(line)}</span>' for line in (value, interval, unit) if line)
    return Markup(f"<span>{lines}</span>")


def _kind(word: str) -> str:
    """As the style sheet calls it."""
    return word.replace(" ", "-")
