"""All claims on one page that needs nothing else: verdicts, the paper's numbers beside ours, intervals as figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from hamburger.report.figures import svg
from hamburger.report.html import Cell, Markup, document, figure, folded, paragraph, section, side_by_side, table, text
from hamburger.report.statistics import half_width, summarise
from hamburger_lab.claims import figures, pictures
from hamburger_lab.claims.base import Claim, Finding, Verdict
from hamburger_lab.claims.method import COUNTS, MARGIN
from hamburger_lab.claims.registry import CLAIMS, FAMILIES
from hamburger_lab.claims.results import Results, by_seed, generated
from hamburger_lab.claims.summary import COLOURS, badge, caution, overview, summary
from hamburger_lab.claims.tables import PRINTED, Judged, counts, files, judged, shared, sheets

MOST_DRAWN = 24  # comparisons of one figure: a phone has no room for more

METHOD = (
    "Scores are validation mIoU of the last step, in points. Differences are paired by seed; an interval is Student's "
    "at 95 %, and below three shared seeds nothing is decided.",
    f"A difference matters from {MARGIN:g} points on, by our choice; this was fixed before any score of the ablations "
    "was seen, but with the comparison of contexts known; the claims about the inside of networks were written with "
    "one network seen. “A beats B” is confirmed where the interval of A - B lies above 0, and not "
    f"confirmed where it ends below {MARGIN:g}, or below the paper's own gain where that is smaller. "
    f"“A is as good as B” is confirmed where it begins above -{MARGIN:g}, "
    f"and not confirmed where it ends below 0. “A and B are level” is confirmed where it lies between -{MARGIN:g} and "
    f"{MARGIN:g}, and otherwise not confirmed where it leaves out 0. For ratios and cosines the "
    "interval lies above a limit, or below it. Of several comparisons all must hold; one of m that refutes a claim is "
    "held to a level of 1 - 5 % / m, so that an interval at 95 % may leave out 0 while the verdict is inconclusive.",
    "The rules were revised after the ablations on generated scenes, made on a processor, and before any ablation on a "
    "card: propositions are held to solves that meet their assumption, Eq. 13 is read in two ways, flat times and "
    "measurements that are missing confirm nothing, runs are told apart by steps and settings, an effect that the "
    f"paper itself found refutes nothing, and a ratio counts from {COUNTS:g} on, silent channels from one on. "
    "Claims that were added then (-equation, -beyond, -code, the bound of Proposition 3, spectra beside attention, "
    "which part costs most, upper against lower bread, scatter by temperature) were written with those rows known. "
    "After the rows of Tables 1, 2 and 8 on photographs BPTT with a clipped gradient and ranks of narrow hams were "
    "asked about, before there were photographs of either, and those of Table 1 were added to the question which ham "
    "is best.",
    "Over several data sets a claim is confirmed where one set confirms it and none refutes it, and not confirmed the "
    "other way round; otherwise it is inconclusive. Each of s sets that may decide is held to a level of 1 - 5 % / s. "
    "Photographs decide; generated scenes stand beside them, and decide only where there is nothing else. Figures draw "
    "the interval at 95 % thick, and thin the one that must leave out what a claim says to refute it, which is wider "
    "where there are several comparisons or data sets; a grey band is what would not matter. The effect "
    "in the table is that of the comparison that speaks least for the claim among those that share its verdict. “Could "
    "tell” is half the width of the interval that decided about it (that of a confirmation where nothing was decided), "
    "at the deviation that was seen: the smallest effect that these seeds could have told from none; of ratios, times.",
    "Times are medians of repeated calls: one is called shorter where its upper quartile lies below the other's lower "
    "one. Memory is counted, and has no spread. A claim about section 2.3 is confirmed where it holds in every solve, "
    "and not confirmed where some case (input, ham, temperature) fails with every seed; a proposition on solves that "
    "meet its assumption, L_h < 1.",
    "Grids share trainings: `whole`, `nmf-one-step`, `nmf-random`, `nmf-k6`, `nmf` and `latent`'s default, `d64-r8` in "
    "a head of 64 channels, are the same training under six names, run more than once on photographs. Verdicts that "
    "rest on it fall together; each claim says with which others it shares its trainings.",
    f"{len(CLAIMS)} claims at 95 % mean that {round(0.05 * len(CLAIMS))} or so may be wrong by chance.",
)


def page(results: Results) -> str:
    found = judged(results)
    head = (
        '<h1 id="top">The paper\'s claims, tested</h1>'
        + paragraph(f"{len(found)} claims of “Is Attention Better Than Matrix Decomposition?”: {counts(found)}.")
        + caution(found)
        + overview(found)
        + folded("How a verdict is found", "".join(paragraph(words) for words in METHOD))
        + summary(found)
    )
    back = paragraph(Markup('<a href="#top">Back to the overview</a>'), kind="soft")
    parts = []
    for family, title in FAMILIES.items():
        own = [(claim, verdict) for claim, verdict in found if claim.family == family]
        content = [one_claim(claim, verdict, others(found, claim.id)) for claim, verdict in own]
        parts.append(section(family, title, tables(results, family), *content, back))
    return document("The paper's claims, tested", head + "".join(parts))


def others(found: Judged, own: str) -> dict[str, list[str]]:
    """Trainings that this claim shares with others, and those claims."""
    return {label: [name for name in ids if name != own] for label, (_, ids) in shared(found).items() if own in ids}


def one_claim(claim: Claim, verdict: Verdict, falls_with: Mapping[str, Sequence[str]]) -> Markup:
    rows: list[list[Cell]] = [["the paper", f"{claim.paper} ({claim.reference})"], ["the test", claim.test]]
    heard = any(trial.decides for trial in verdict.trials)
    for trial in verdict.trials:
        beside = " beside photographs, decides nothing" if heard and not trial.decides else ""
        rows.append(["here", Markup(f"{text(trial.text)}: {badge(trial.word)}{beside}")])
    rows += [["here", "not run"]] if not verdict.trials else []
    return Markup(
        f'<article id="{claim.id}"><h3>{text(claim.statement)} {badge(verdict.word)} '
        f'<span class="soft">{text(verdict.basis)}</span></h3>'
        + table(["", ""], rows, name=f"{claim.id}-table", kind="words")
        + forest(claim, verdict)
        + same_runs(falls_with)
        + folded("The command that makes such rows", f"<pre>{text(claim.command)}</pre>")
        + "</article>"
    )


def same_runs(falls_with: Mapping[str, Sequence[str]]) -> Markup:
    """Folded, since a claim may have twenty neighbours."""
    if not falls_with:
        return Markup()
    lines = ""
    for label, names in falls_with.items():
        links = ", ".join(f'<a href="#{name}">{name}</a>' for name in names)
        lines += f"<p>{text(label)}, as in {links}</p>"
    count = len({name for names in falls_with.values() for name in names})
    return folded(f"Rests on the same trainings as {count} other claim{'s' * (count > 1)}", lines)


def forest(claim: Claim, verdict: Verdict) -> Markup:
    """Every comparison with its interval; the line is what it is held against, the band what would not matter."""
    names = [trial.where.partition(",")[0] for trial in verdict.trials]
    if len(set(names)) < len(names):  # one recipe with other steps or settings
        names = [trial.where.rpartition(", ")[0] or trial.where for trial in verdict.trials]
    drawn: list[tuple[str, Finding]] = [
        (name, finding) for name, trial in zip(names, verdict.trials, strict=True) for finding in trial.findings
    ]
    if not drawn:
        return Markup()
    left_out = len(drawn) - MOST_DRAWN
    drawn = telling(drawn)
    first = drawn[0][1]
    unit = first.unit
    measured = {"points": "mIoU, points", "times": "ratio"}.get(unit, unit.strip("()"))

    def draw(axes: Any) -> None:
        if unit == "points":
            axes.axvspan(-MARGIN, MARGIN, color="#8A8A8A", alpha=0.15, linewidth=0)
        for place, (_, finding) in enumerate(drawn):
            colour = COLOURS[finding.word]
            if finding.limit is not None:
                axes.plot([finding.limit] * 2, [place - 0.5, place + 0.5], color="#8A8A8A", linewidth=1)
            if finding.wide is not None:
                axes.plot(finding.wide, [place, place], color=colour, linewidth=0.9)
            if finding.interval is not None:
                axes.plot(finding.interval, [place, place], color=colour, linewidth=2)
            axes.plot([finding.effect], [place], "o", color=colour, markersize=6)
        axes.set_yticks(range(len(drawn)), [f"{_short(finding)}\n{where}" for where, finding in drawn])
        axes.tick_params(axis="y", labelsize=8.5)  # 9 pixels on a phone
        axes.set(xlabel=measured or first.short or first.what.partition(", ")[2])
        axes.set_ylim(len(drawn) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        if any(finding.wide for _, finding in drawn):  # whose ends may be far: the figure is for the others
            ends = [end for _, f in drawn for end in (f.effect, *(f.interval or ()), f.limit) if end is not None]
            all_ends = [*ends, *(end for _, f in drawn for end in f.wide or ())]
            span = max(ends) - min(ends) or 1.0
            low, high = max(min(all_ends), min(ends) - 0.5 * span), min(max(all_ends), max(ends) + 0.5 * span)
            axes.set_xlim(low - 0.05 * span, high + 0.05 * span)

    alt = f"{claim.id}: effects and their 95 % intervals"
    notes = []
    if any(finding.wide for _, finding in drawn):
        notes.append("Thick: the interval at 95 %. Thin: the one that may refute; one that reaches the edge goes on.")
    if left_out > 0:
        notes.append(f"{left_out} comparisons that speak more for the claim, some of each ham, are not drawn.")
    caption = " ".join(notes)
    return figure(svg(claim.id, draw, alt=alt, height=0.7 + 0.36 * len(drawn)), caption)


def telling(drawn: list[tuple[str, Finding]]) -> list[tuple[str, Finding]]:
    """Those that speak least for the claim, by turns of every ham and set of runs where there is no room for all."""
    if len(drawn) <= MOST_DRAWN:
        return drawn
    groups: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for where, finding in sorted(drawn, key=lambda one: one[1].support):
        groups.setdefault((where, re.split("[-, /]", finding.what)[0]), []).append((where, finding))
    turns = [one for turn in zip_longest(*groups.values()) for one in turn if one is not None]
    return sorted(turns[:MOST_DRAWN], key=lambda one: one[1].support)


CURVES: dict[str, Callable[[Results], Markup]] = {
    "inside": figures.spectra,
    "angles": figures.angles,
    "steps": figures.sweeps,
    "cost": figures.costs,
}


def tables(results: Results, family: str) -> Markup:
    """The paper's table beside ours, and ours as figures with error bars; pictures where there are some."""
    made = []
    for place, sheet in enumerate(sheets(results, family)):
        made += [paragraph(sheet.title, kind="soft")] * bool(sheet.title)
        lines = [[first, *map(_score, others)] for first, *others in sheet.lines]
        made.append(table(sheet.header, lines, name=f"{family}-cells{place or ''}"))
    if family in CURVES:
        made.append(CURVES[family](results))
    else:
        drawn = [bars(family, name, key, rows) for name, (key, rows) in files(results, family).items()]
        made.append(side_by_side(*filter(None, drawn)))
    if family == "inside":
        made += [pictures.shown(study) for name, study in results.studies.items() if name.startswith("pictures_")]
    return Markup("".join(made))


def bars(family: str, name: str, key: str, rows: Sequence[dict[str, Any]]) -> Markup:
    """Mean of each cell with the interval of the mean, each seed a dot, and the paper's mean as a diamond."""
    cells = list(dict.fromkeys(row[key] for row in rows if row.get("miou") is not None))[:MOST_DRAWN]
    if not cells:  # a training of another task
        return Markup()
    # beside generated scenes the paper's percentages would say nothing
    printed = {} if generated(rows[0]) else PRINTED.get(family, {})

    def draw(axes: Any) -> None:
        for place, cell in enumerate(cells):
            had = list(by_seed(list(rows), key, cell, "miou", 100).values())
            score = summarise(had)
            axes.plot(had, [place] * len(had), "o", color="#56B4E9", markersize=4, alpha=0.8)
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
        "interval, unpaired, so that overlapping lines may still differ seed by seed."
    )
    caption += " Diamond: the paper's mean on PASCAL VOC, another data set." if printed else ""
    drawn = svg(f"bars-{name}", draw, alt=f"mIoU of the cells of {family}", height=0.7 + 0.26 * len(cells))
    return figure(drawn, caption)


def _short(finding: Finding) -> str:
    """What was compared, in lines that leave a phone room for the figure."""
    return finding.short or (finding.what if len(finding.what) <= 34 else finding.what.replace(", ", ",\n", 1))


def _score(words: str) -> Cell:
    """Mean and spread, and below them what else is said of a cell."""
    score, bracket, rest = words.partition(" (best")
    return Markup(f'{text(score)}<br><span class="soft">(best{text(rest)}</span>') if bracket else words
