"""The HTML page of all claims: verdicts, the paper's numbers next to ours, intervals as figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

from hamburger.report.html import (
    CellText,
    Markup,
    collapsible,
    document,
    figure,
    paragraph,
    render_svg,
    section,
    side_by_side,
    table,
    text,
)
from hamburger.report.study import half_width, summarise
from hamburger_lab.claims import feature_maps, figures
from hamburger_lab.claims.base import CONFIRMED, INCONCLUSIVE, NOT_CONFIRMED, NOT_RUN, Claim, Finding, Verdict
from hamburger_lab.claims.registry import CLAIMS, FAMILIES
from hamburger_lab.claims.rules import MARGIN, RULES, VERDICT_TABLE
from hamburger_lab.claims.tables import (
    EFFECT_HEADER,
    PRINTED,
    SMALL_SCALE_NOTE,
    ClaimVerdicts,
    count_by_origin,
    effect_parts,
    format_power,
    judge_all,
    result_tables,
    score_files,
    shared_trainings,
)
from hamburger_lab.rows import Results, is_generated, values_by_seed

COLOURS = {CONFIRMED: "#009E73", NOT_CONFIRMED: "#D55E00", INCONCLUSIVE: "#8A8A8A", NOT_RUN: "#8A8A8A"}  # in figures
SIGNS = {CONFIRMED: "✓", NOT_CONFIRMED: "✗", INCONCLUSIVE: "?", NOT_RUN: "-"}  # for readers who see no colours
PLACES = {  # in the paper
    **{"gradient": "Table 1, section 2.3", "angles": "section 2.3", "parts": "Table 2", "accuracy": "Tables 4 and 5"},
    **{"init": "Table 8", "dictionary": "not in the paper", "temperature": "Table 9", "latent": "Fig. 3"},
    **{"steps": "Figs. 4 and 7 to 9", "inside": "Figs. 5 and 6, section 2.3", "cost": "Table 3, section 2.3"},
    **{"generation": "Table 6, section 3.5", "propositions": "Propositions 1 to 3"},
}
HEADER = ("claim", "verdict", EFFECT_HEADER, "detectable", "seeds")


def caution_note(verdicts: ClaimVerdicts) -> Markup:
    """Return the caveats that come before the first verdict: scale, generated scenes, what was not run."""
    scale = (
        "Most networks here train for some hundred steps on some hundred photographs; in the paper for 30,000 steps on "
        "VOC. Verdicts apply to this scale, which is too small to show most small effects. "
    )
    weak = sum(verdict.generated for _, verdict in verdicts)
    left = [claim.id for claim, verdict in verdicts if verdict.outcome == NOT_RUN]
    links = ", ".join(f'<a href="#{name}">{name}</a>' for name in left)
    warning = (
        f"{weak} of these verdicts {'are' if weak > 1 else 'is'} based on generated scenes alone: tiny networks, a few "
        "hundred steps, scenes of 64 x 64 pixels whose difficulty was set by looking at the scores of the hams. That "
        "is a weak test of the paper's claims about photographs, in either direction. "
    )
    not_run = f"Not run: {links}; the command is under each. " if left else ""
    return paragraph(Markup(scale + (warning if weak else "") + not_run), kind="note")


def badge(outcome: str) -> Markup:
    return Markup(f'<span class="badge {_kind(outcome)}">{outcome}</span>')


def overview(verdicts: ClaimVerdicts) -> Markup:
    """Return the table of contents, with a mark for the verdict of each claim."""
    lines = []
    for family, title in FAMILIES.items():
        marks = "".join(verdict_mark(claim, verdict) for claim, verdict in verdicts if claim.family == family)
        topic = f'<a href="#{family}">{text(title)}</a> <span class="soft">{PLACES[family]}</span>'
        lines.append(f'<li><span>{topic}</span><span class="marks">{marks}</span></li>')
    signs = [f'<span class="mark {_kind(outcome)}">{sign}</span> {outcome}' for outcome, sign in SIGNS.items()]
    if any(verdict.generated for _, verdict in verdicts):
        signs.append(f'<span class="mark weak {_kind(INCONCLUSIVE)}">?</span> dashed: on generated scenes alone')
    legend = paragraph(Markup(" &ensp; ".join(f'<span class="whole">{sign}</span>' for sign in signs)), kind="soft")
    return Markup(f'<nav class="overview" aria-label="topics and verdicts"><ul>{"".join(lines)}</ul></nav>{legend}')


def verdict_mark(claim: Claim, verdict: Verdict) -> str:
    label = text(f"{claim.id}: {', '.join(filter(None, (verdict.outcome, verdict.basis)))}. {claim.statement}")
    weak = " weak" * verdict.generated
    return (
        f'<a class="mark{weak} {_kind(verdict.outcome)}" href="#{claim.id}" title="{label}" aria-label="{label}">'
        f"{SIGNS[verdict.outcome]}</a>"
    )


def summary_table(verdicts: ClaimVerdicts) -> Markup:
    """All verdicts in one table, topic by topic."""
    rows: list[list[CellText]] = [
        [
            Markup(
                f'<a href="#{claim.id}">{claim.id}</a>{" (our question)" * claim.ours}<br>'
                f"<span>{text(claim.statement)}</span>"
            ),
            Markup(
                '<span class="whole">'
                + "<br>".join([badge(verdict.outcome), *filter(None, verdict.basis.split(", "))])
                + "</span>"
            ),
            effect_cell(verdict),
            format_power(verdict),
            str(verdict.seeds or ""),
        ]
        for claim, verdict in verdicts
    ]
    groups, at = {}, 0
    for family, members in groupby(verdicts, key=lambda one: one[0].family):
        groups[at] = FAMILIES[family]
        at += len(list(members))
    return table(HEADER, rows, name="summary", kind="cards verdicts", groups=groups)


def effect_cell(verdict: Verdict) -> CellText:
    """The effect, below it its interval, and its unit where that is not points of mIoU."""
    lines = "<br>".join(f'<span class="whole">{text(line)}</span>' for line in effect_parts(verdict) if line)
    return Markup(f"<span>{lines}</span>") if lines else Markup()


def _kind(outcome: str) -> str:
    """Return the CSS class of a verdict."""
    return outcome.replace(" ", "-")


# -- the page --------------------------------------------------------------------------------------------------------

MOST_DRAWN = 24  # most comparisons in one figure, to fit on a phone


def rules_html() -> Markup:
    """The rules of the verdicts: the table, then a paragraph each."""
    header, *lines = VERDICT_TABLE
    chance = f"{len(CLAIMS)} claims at 95 % mean that {round(0.05 * len(CLAIMS))} or so may be wrong by chance."
    return Markup(
        table(header, [list(line) for line in lines], name="rules", kind="text")
        + "".join(paragraph(rule) for rule in (*RULES, chance))
    )


def claims_page(results: Results) -> str:
    verdicts = judge_all(results)
    head = (
        '<h1 id="top">The paper\'s claims, tested</h1>'
        + paragraph(
            "Claims of “Is Attention Better Than Matrix Decomposition?”, and our questions about them. "
            f"{count_by_origin(verdicts)}. {SMALL_SCALE_NOTE}"
        )
        + caution_note(verdicts)
        + overview(verdicts)
        + collapsible("How verdicts are computed", rules_html())
        + summary_table(verdicts)
    )
    back = paragraph(Markup('<a href="#top">Back to the overview</a>'), kind="soft")
    parts = []
    for family, title in FAMILIES.items():
        members = [(claim, verdict) for claim, verdict in verdicts if claim.family == family]
        content = [
            claim_article(claim, verdict, claims_sharing_trainings(verdicts, claim.id)) for claim, verdict in members
        ]
        parts.append(section(family, title, family_tables(results, family), *content, back))
    return document("The paper's claims, tested", head + "".join(parts))


def claims_sharing_trainings(verdicts: ClaimVerdicts, claim_id: str) -> dict[str, list[str]]:
    """Return training -> other claims that depend on it."""
    return {
        label: [name for name in ids if name != claim_id]
        for label, (_, ids) in shared_trainings(verdicts).items()
        if claim_id in ids
    }


def claim_article(claim: Claim, verdict: Verdict, shared: Mapping[str, Sequence[str]]) -> Markup:
    rows: list[list[CellText]] = [["the paper", f"{claim.paper} ({claim.reference})"], ["the test", claim.test]]
    decided = any(trial.decides for trial in verdict.trials)
    for trial in verdict.trials:
        remark = " (generated scenes; photographs decide)" if decided and not trial.decides else ""
        rows.append(["here", Markup(f"{text(trial.text)}: {badge(trial.outcome)}{remark}")])
    rows += [["here", "not run"]] if not verdict.trials else []
    return Markup(
        f'<article id="{claim.id}"><h3>{text(claim.statement)} {badge(verdict.outcome)} '
        f'<span class="soft">{text(verdict.basis)}</span></h3>'
        + table(["", ""], rows, name=f"{claim.id}-table", kind="text")
        + forest_plot(claim, verdict)
        + shared_trainings_note(shared)
        + collapsible("The command that makes such rows", f"<pre>{text(claim.command)}</pre>")
        + "</article>"
    )


def shared_trainings_note(shared: Mapping[str, Sequence[str]]) -> Markup:
    """Return the claims with the same trainings, collapsed."""
    if not shared:
        return Markup()
    lines = ""
    for label, names in shared.items():
        links = ", ".join(f'<a href="#{name}">{name}</a>' for name in names)
        lines += f"<p>{text(label)}, as in {links}</p>"
    count = len({name for names in shared.values() for name in names})
    return collapsible(f"Uses the same trainings as {count} other claim{'s' * (count > 1)}", lines)


def forest_plot(claim: Claim, verdict: Verdict) -> Markup:
    """Return a forest plot: every comparison with its interval, the threshold as a line, the margin as a band."""
    names = [trial.where.partition(",")[0] for trial in verdict.trials]
    if len(set(names)) < len(names):  # one recipe with other steps or settings
        names = [trial.where.rpartition(", ")[0] or trial.where for trial in verdict.trials]
    drawn: list[tuple[str, Finding]] = [
        (name, finding) for name, trial in zip(names, verdict.trials, strict=True) for finding in trial.findings
    ]
    if not drawn:
        return Markup()
    left_out = len(drawn) - MOST_DRAWN
    drawn = select_drawn(drawn)
    first = drawn[0][1]
    unit = first.unit
    measured = {"points": "mIoU, points", "times": "ratio"}.get(unit, unit.strip("()"))

    def draw(axes: Any) -> None:
        if unit == "points":
            axes.axvspan(-MARGIN, MARGIN, color="#8A8A8A", alpha=0.15, linewidth=0)
        for place, (_, finding) in enumerate(drawn):
            colour = COLOURS[finding.outcome]
            if finding.limit is not None:
                axes.plot([finding.limit] * 2, [place - 0.5, place + 0.5], color="#8A8A8A", linewidth=1)
            if finding.refuting is not None:
                axes.plot(finding.refuting, [place, place], color=colour, linewidth=0.9)
            if finding.interval is not None:
                axes.plot(finding.interval, [place, place], color=colour, linewidth=2)
            axes.plot([finding.effect], [place], "o", color=colour, markersize=6)
        axes.set_yticks(range(len(drawn)), [f"{_short(finding)}\n{where}" for where, finding in drawn])
        axes.tick_params(axis="y", labelsize=8.5)  # 9 pixels on a phone
        axes.set(xlabel=measured or first.short_label or first.label.partition(", ")[2])
        axes.set_ylim(len(drawn) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        if any(finding.refuting for _, finding in drawn):  # wide intervals must not squeeze the others
            ends = [end for _, f in drawn for end in (f.effect, *(f.interval or ()), f.limit) if end is not None]
            all_ends = [*ends, *(end for _, f in drawn for end in f.refuting or ())]
            span = max(ends) - min(ends) or 1.0
            low, high = max(min(all_ends), min(ends) - 0.5 * span), min(max(all_ends), max(ends) + 0.5 * span)
            axes.set_xlim(low - 0.05 * span, high + 0.05 * span)

    alt = f"{claim.id}: effects and their 95 % intervals"
    notes = []
    if any(finding.refuting for _, finding in drawn):
        notes.append("Thick: the interval at 95 %. Thin: the wider interval that may refute; at the edge it continues.")
    if left_out > 0:
        notes.append(f"{left_out} comparisons that support the claim more, some of each ham, are not drawn.")
    caption = " ".join(notes)
    return figure(render_svg(claim.id, draw, alt=alt, height=0.7 + 0.36 * len(drawn)), caption)


def select_drawn(drawn: list[tuple[str, Finding]]) -> list[tuple[str, Finding]]:
    """Return at most MOST_DRAWN comparisons, those that support the claim least of every ham and set of runs."""
    if len(drawn) <= MOST_DRAWN:
        return drawn
    groups: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for where, finding in sorted(drawn, key=lambda one: one[1].support):
        groups.setdefault((where, re.split("[-, /]", finding.label)[0]), []).append((where, finding))
    turns = [one for turn in zip_longest(*groups.values()) for one in turn if one is not None]
    return sorted(turns[:MOST_DRAWN], key=lambda one: one[1].support)


CURVES: dict[str, Callable[[Results], Markup]] = {
    "inside": figures.spectra_figures,
    "angles": figures.angle_figures,
    "steps": figures.steps_figures,
    "cost": figures.cost_figures,
}


def family_tables(results: Results, family: str) -> Markup:
    """Return the paper's table next to ours, ours as figures with error bars, and feature maps where there are some."""
    parts = []
    for place, result in enumerate(result_tables(results, family)):
        parts += [paragraph(result.title, kind="soft")] * bool(result.title)
        lines = [[first, *map(_score, others)] for first, *others in result.lines]
        parts.append(table(result.header, lines, name=f"{family}-cells{place or ''}"))
    if family in CURVES:
        parts.append(CURVES[family](results))
    else:
        drawn = [score_bars(family, name, key, rows) for name, (key, rows) in score_files(results, family).items()]
        parts.append(side_by_side(*filter(None, drawn)))
    if family == "inside":
        parts += [
            feature_maps.feature_maps_html(name, study)
            for name, study in results.studies.items()
            if name.startswith("feature_maps_")
        ]
    return Markup("".join(parts))


def score_bars(family: str, name: str, key: str, rows: Sequence[dict[str, Any]]) -> Markup:
    """Return a figure of each cell: mean with interval, each seed as a dot, the paper's mean as a diamond."""
    cells = list(dict.fromkeys(row[key] for row in rows if row.get("miou") is not None))[:MOST_DRAWN]
    if not cells:  # a training of another task
        return Markup()
    # the paper's percentages are not comparable with generated scenes
    printed = {} if is_generated(rows[0]) else PRINTED.get(family, {})

    def draw(axes: Any) -> None:
        for place, cell in enumerate(cells):
            scores = list(values_by_seed(list(rows), key, cell, "miou", 100).values())
            score = summarise(scores)
            axes.plot(scores, [place] * len(scores), "o", color="#56B4E9", markersize=4, alpha=0.8)
            if score.deviation is not None and score.n > 2:
                reach = half_width(score)
                axes.plot([score.mean - reach, score.mean + reach], [place, place], color="#0072B2", linewidth=1.6)
            axes.plot([score.mean] * 2, [place - 0.28, place + 0.28], color="#0072B2", linewidth=2.4)
            if cell in printed:
                axes.plot([printed[cell][1]], [place], "D", color="#CC79A7", markersize=4.5)
        axes.set_yticks(range(len(cells)), cells)
        axes.set(xlabel="mIoU, %", ylim=(len(cells) - 0.4, -0.6))
        axes.grid(visible=False, axis="y")

    first = rows[0]
    caption = (
        f"{first['recipe']}, {first['steps']} steps, {first['hardware']}. Dots: runs. Bar: their mean; line: its 95 % "
        "interval, unpaired; cells with overlapping lines may still differ seed by seed."
    )
    caption += " Diamond: the paper's mean on PASCAL VOC, another data set." if printed else ""
    drawn = render_svg(f"bars-{name}", draw, alt=f"mIoU of the cells of {family}", height=0.7 + 0.26 * len(cells))
    return figure(drawn, caption)


def _short(finding: Finding) -> str:
    """Return what was compared, in lines short enough for a phone."""
    return finding.short_label or (finding.label if len(finding.label) <= 34 else finding.label.replace(", ", ",\n", 1))


def _score(cell: str) -> CellText:
    """Return mean and spread, and the remaining text on the next line."""
    score, bracket, rest = cell.partition(" (best")
    return Markup(f'{text(score)}<br><span class="soft">(best{text(rest)}</span>') if bracket else cell
