"""Verdicts as JSON rows and Markdown, and the paper's tables next to ours."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

from hamburger.files import encode_json
from hamburger.report.study import has_collapsed, summarise
from hamburger_lab.ablations.grids import ablations
from hamburger_lab.claims.base import NOT_CONFIRMED, NOT_RUN, OUTCOMES, Claim, Trial, Verdict, deciding_trials
from hamburger_lab.claims.registry import CLAIMS, FAMILIES
from hamburger_lab.claims.result_tables import (
    ResultTable,
    angle_tables,
    describe_runs,
    distance_tables,
    gradient_tables,
    inside_tables,
    paper_table3_tables,
    steps_tables,
)
from hamburger_lab.claims.rules import RULES, VERDICT_TABLE
from hamburger_lab.markdown import collapsed, markdown_table
from hamburger_lab.paper import TABLE4, TABLE5, printed_by_context
from hamburger_lab.rows import Results, Row, values_by_seed

ClaimVerdicts = list[tuple[Claim, Verdict]]

# mIoU on PASCAL VOC val, best and mean of 5 runs
PRINTED: dict[str, dict[str, tuple[float, float]]] = {
    "gradient": {
        **{"nmf-one-step": (78.3, 77.8), "nmf-bptt": (77.4, 77.0)},
        **{"vq-one-step": (77.7, 77.4), "vq-bptt": (76.6, 76.3)},
        **{"cd-one-step": (78.1, 77.5), "cd-bptt": (75.0, 74.6)},
    },
    "parts": {
        **{"baseline": (75.9, 75.7), "whole": (78.3, 77.8), "without-ham": (75.8, 75.6)},
        **{"without-upper": (77.0, 76.8), "without-lower": (77.3, 77.2), "only-ham": (77.0, 76.8)},
    },
    "init": {
        **{"nmf-fixed": (77.4, 77.3), "cd-fixed": (77.7, 77.4), "vq-fixed": (77.3, 76.9)},
        **{"nmf-learned": (76.8, 76.5), "cd-learned": (75.0, 73.7), "vq-learned": (75.9, 75.8)},
        **{"nmf-random": (78.3, 77.8), "cd-random": (77.9, 77.3), "vq-random": (77.7, 77.4)},
        **{"nmf-online": (77.8, 77.5), "cd-online": (78.1, 77.5), "vq-online": (78.0, 77.2)},
    },
    "temperature": {"cd-t1": (77.1, 77.0), "cd-t0.1": (78.2, 77.5), "cd-t0.01": (78.1, 77.5)},
}
SYSTEMS = printed_by_context(TABLE4, TABLE5)  # whole systems, ResNet-101, multiple scales
TITLES = {
    **{"gradient": "Table 1", "parts": "Table 2", "init": "Table 8", "temperature": "Table 9"},
    "accuracy": "Tables 4 and 5: VOC test; PASCAL-Context",
}
CLIPPED = "With the norm of the gradient clipped to 1:"


def judge_all(results: Results) -> ClaimVerdicts:
    return [(claim, claim.judge(results)) for claim in CLAIMS]


def round_significant(value: float) -> float:
    return float(f"{value:.4g}")


def as_rows(verdicts: ClaimVerdicts) -> list[dict[str, Any]]:
    """Return the rows of `results/claims.json`."""
    rows = []
    for claim, verdict in verdicts:
        decisive = verdict.decisive
        rows.append(
            {
                "id": claim.id,
                "statement": claim.statement,
                "paper": claim.paper,
                "here": verdict.here or "not run",
                "effect": None if decisive is None else round_significant(decisive.effect),
                "ci": None
                if decisive is None or decisive.interval is None
                else [round_significant(x) for x in decisive.interval],
                "detectable": None
                if decisive is None or decisive.detectable is None
                else round_significant(decisive.detectable),
                "n_seeds": 1 if verdict.seeds is None else verdict.seeds,
                "verdict": verdict.outcome,
                "basis": verdict.basis or None,
                "unit": None if decisive is None else decisive.unit.strip("()") or None,
                "reference": claim.reference,
                "test": claim.test,
                "command": claim.command,
            }
        )
    return rows


def as_json(verdicts: ClaimVerdicts) -> str:
    """One line for each claim, so that a diff shows which verdict changed."""
    return "[\n" + ",\n".join(encode_json(row) for row in as_rows(verdicts)) + "\n]\n"


def count_verdicts(verdicts: ClaimVerdicts) -> str:
    """`12 confirmed, 3 not confirmed, ...`"""
    counts = Counter(verdict.outcome for _, verdict in verdicts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])


def format_effect(verdict: Verdict) -> str:
    decisive = verdict.decisive
    if decisive is None:
        return ""
    text = decisive.template.format(decisive.effect)
    if decisive.interval is not None:
        text += " [{}, {}]".format(*(decisive.template.format(end) for end in decisive.interval))
    return text


def format_power(verdict: Verdict) -> str:
    """Return the smallest effect that the seeds of the decisive comparison could have shown."""
    return "" if verdict.decisive is None else verdict.decisive.power


def shared_trainings(verdicts: ClaimVerdicts) -> dict[str, tuple[list[str], list[str]]]:
    """Return training -> (names of its cells, claims that depend on it), for trainings of several claims."""
    cells: dict[str, dict[str, None]] = {}
    claims: dict[str, dict[str, None]] = {}
    for claim, verdict in verdicts:
        for label, cell in (one for trial in deciding_trials(verdict.trials) for one in trial.trainings):
            cells.setdefault(label, {})[cell] = None
            claims.setdefault(label, {})[claim.id] = None
    return {label: ([*cells[label]], [*ids]) for label, ids in claims.items() if len(ids) > 1}


def shared_trainings_table(verdicts: ClaimVerdicts) -> str:
    """Return the trainings that several verdicts share, as a table."""
    lines = [
        [label, ", ".join(f"`{cell}`" for cell in cells), ", ".join(ids)]
        for label, (cells, ids) in shared_trainings(verdicts).items()
    ]
    return markdown_table(["trainings", "cells of these trainings", "verdicts that depend on them"], lines)


def format_verdict(verdict: Verdict) -> str:
    return f"**{verdict.outcome}**" + (f", {verdict.basis}" if verdict.basis else "")


def claims_markdown(results: Results) -> str:
    """Return every claim with its verdict and the tables of its topic."""
    verdicts = judge_all(results)
    parts = [f"{len(verdicts)} claims: {count_verdicts(verdicts)}."]
    for family, title in FAMILIES.items():
        lines = []
        for claim, verdict in verdicts:
            if claim.family == family:
                measured = "<br>".join(trial.text for trial in verdict.trials) or "-"
                statement = f"{claim.statement} ({claim.reference})"
                numbers = format_effect(verdict), format_power(verdict), format_verdict(verdict)
                lines.append([statement, claim.paper, measured, *numbers])
        tables = [markdown_table(["claim", "paper", "here", "effect", "detectable", "verdict"], lines)]
        for table in result_tables(results, family):
            tables += [table.title] * bool(table.title) + [markdown_table(table.header, table.lines)]
        counts = count_verdicts([(claim, verdict) for claim, verdict in verdicts if claim.family == family])
        parts += [f"### {title}", collapsed(counts, "\n\n".join(tables))]
    if shared_trainings(verdicts):
        shared = collapsed(
            "Trainings, their cells, and the verdicts that depend on them", shared_trainings_table(verdicts)
        )
        parts += ["### Verdicts that share trainings", shared]
    return "\n\n".join(parts)


def full_page(results: Results) -> str:
    """Return docs/generated/claims.md: all claims, their tables, the rules of the verdicts, and what is left to run."""
    header, *lines = VERDICT_TABLE
    chance = f"{len(CLAIMS)} claims at 95 % mean that {round(0.05 * len(CLAIMS))} or so may be wrong by chance."
    parts = [
        "<!-- Written by `make pages` from results/. Do not edit. -->",
        "# All claims, with their rows and rules",
        "After this page you know every claim that was tested, its rows and the rule of its verdict. The "
        "[summary](../claims.md) says how to read it. [`results/claims.json`](../../results/claims.json) has the same "
        "verdicts for programs; `ham claims --html FILE` draws them as figures.",
        "## Verdicts",
        claims_markdown(results),
        "## Rules",
        collapsed("How each kind of claim is judged", markdown_table(header, lines)),
        collapsed("Rules and their history", "\n".join(f"- {rule}" for rule in (*RULES, chance))),
        "## Grids",
        "`ham ablate NAME --plan --out DIR` prints each cell of a grid with the command that runs it. The commands "
        "that made the rows are in [results](../../results/README.md#ablations).",
        collapsed(
            "All grids",
            markdown_table(
                ["grid", "cells"], [[f"`{name}`", _first_line(ablations[name])] for name in ablations.names()]
            ),
        ),
        "## Claims without rows on photographs",
        missing_commands(results),
    ]
    return "\n\n".join(parts) + "\n"


def unconfirmed_table(results: Results) -> str:
    """Return the claims that the rows contradict, with the comparison that decides."""
    verdicts = judge_all(results)
    contradicted = [(claim, verdict) for claim, verdict in verdicts if verdict.outcome == NOT_CONFIRMED]
    lines = [[f"{claim.statement} ({claim.reference})", format_effect(verdict)] for claim, verdict in contradicted]
    note = (
        f"{len(contradicted)} of {len(verdicts)} claims. Those marked as our question are not in the paper. Scores are "
        "in points of mIoU; a cosine of 1 is the same direction."
    )
    return f"{markdown_table(['claim', 'effect'], lines)}\n\n{note}"


def _first_line(function: object) -> str:
    return " ".join(inspect.getdoc(function).split("\n\n")[0].split())  # type: ignore[union-attr]


def topic_counts(results: Results) -> str:
    """Return a table of the number of verdicts of each kind by topic."""
    verdicts = judge_all(results)
    outcomes = [outcome for outcome in OUTCOMES if any(verdict.outcome == outcome for _, verdict in verdicts)]
    lines = []
    for family, title in FAMILIES.items():
        counts = Counter(verdict.outcome for claim, verdict in verdicts if claim.family == family)
        lines.append(
            [
                f"[{title}](generated/claims.md#{heading_anchor(title)})",
                *(str(counts[outcome] or "") for outcome in outcomes),
            ]
        )
    total = Counter(verdict.outcome for _, verdict in verdicts)
    lines.append(["**all**", *(f"**{total[outcome]}**" for outcome in outcomes)])
    collapsed = sum(verdict.collapsed for _, verdict in verdicts)
    generated = sum(verdict.generated for _, verdict in verdicts)
    note = (
        f"{collapsed} verdicts compare with trainings that collapsed; {generated} rest on generated scenes alone. "
        f"At 95 %, about {round(0.05 * len(verdicts))} of {len(verdicts)} may be wrong by chance."
    )
    return f"{markdown_table(['topic', *outcomes], lines)}\n\n{note}"


def heading_anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -").replace(" ", "-")


def attention_answer(results: Results) -> str:
    """Return the answer to "is it as good as attention?" in sentences, with numbers from the rows."""
    verdicts = {claim.id: verdict for claim, verdict in judge_all(results)}
    attention, danet = verdicts["accuracy-self-attention"], verdicts["accuracy-danet"]
    whole, ham = verdicts["parts-whole"], verdicts["parts-ham"]
    times, memory = verdicts["cost-time-fused"].trials[0], verdicts["cost-memory"].trials[0]
    return "\n".join(
        f"{number}. {sentence}"
        for number, sentence in enumerate(
            (
                f"**CamVid**: NMF minus self-attention is {_difference(attention, 'camvid-short')}; NMF minus DANet's "
                f"module, which has more parameters, is {_difference(danet, 'camvid-short')}.",
                f"**Animals of VOC**: NMF minus self-attention is {_difference(attention, 'voc-animals')}; NMF minus "
                f"DANet's module is {_difference(danet, 'voc-animals')}.",
                f"**All of VOC** at the paper's training length: NMF minus self-attention is "
                f"{_difference(attention, 'voc-352')}; NMF minus no context at all is {_difference(whole, 'voc-352')}.",
                f"**Animals of VOC against no context at all**: {_difference(whole, 'voc-animals')}; against the "
                f"two breads without the ham: {_difference(ham, 'voc-animals')}.",
                f"**Cost** ({times.where}): fused attention takes {_range(times)} times as long as a ham; attention "
                f"with its scores in memory needs {_range(memory)} times the memory (float32).",
                "**Scale**: except for all of VOC, these are trainings of 400 to 1,000 steps on some hundred "
                "photographs. This is too small to show most small effects.",
            ),
            start=1,
        )
    )


def _difference(verdict: Verdict, recipe: str) -> str:
    """Return the first comparison on a recipe, such as `-3.16 points [-4.85, -1.47], 3 seeds: a loss`."""
    trial = next(trial for trial in verdict.trials if trial.where.startswith(recipe))
    finding = trial.findings[0]
    if finding.interval is None:
        judgement = "no interval"
    else:
        judgement = "a loss" if finding.interval[1] < 0 else "a gain" if finding.interval[0] > 0 else "undecided"
    steps = trial.where.split(", ")[1]
    numbers = finding.text.removeprefix(finding.label).strip().replace(" [", " points [", 1)
    return f"{numbers} ({steps}, {finding.n} seeds), {judgement}"


def _range(trial: Trial) -> str:
    """Return the smallest and largest effect of a trial."""
    effects = [finding.effect for finding in trial.findings]
    return f"{min(effects):.1f} to {max(effects):.1f}"


def missing_commands(results: Results) -> str:
    """Return the commands of claims that have no rows on photographs, each once."""
    missing: dict[str, list[str]] = {}
    for claim, verdict in judge_all(results):
        if verdict.outcome == NOT_RUN or not any(trial.decides for trial in verdict.trials):
            missing.setdefault(claim.command, []).append(claim.id)
    if not missing:
        return "None: every claim has been run."
    lines = [f"# {', '.join(ids)}\n{command}" for command, ids in missing.items()]
    return "```sh\n" + "\n".join(lines) + "\n```"


def result_tables(results: Results, family: str) -> list[ResultTable]:
    """Return the tables of a family: measurements, or the cells of its ablation."""
    if family == "cost":
        return [*paper_table3_tables(results), *gradient_tables(results)]
    if family == "gradient":
        return [*paper_comparison(results, family), *paper_comparison(results, "clip", CLIPPED)]
    if family == "latent":  # cells are named by d and r, which differ between heads of different widths
        files = [(name, rows) for name, (_, rows) in score_files(results, family).items()]
        return [
            one for name, rows in files for one in paper_comparison(Results({name: rows}), family, describe_runs(rows))
        ]
    builders = {
        "generation": distance_tables,
        "inside": inside_tables,
        "angles": angle_tables,
        "steps": steps_tables,
    }
    return builders[family](results) if family in builders else paper_comparison(results, family)


def score_files(results: Results, family: str) -> dict[str, tuple[str, list[Row]]]:
    """Return file name -> (key that names a cell, rows), for the score files of a family."""
    sources = {"accuracy": {"ablation_contexts_": "cell", "segmentation_": "context"}}
    prefixes = sources.get(family, {f"ablation_{family}_": "cell"})
    return {name: (key, rows) for prefix, key in prefixes.items() for name, rows in results.with_prefix(prefix).items()}


def paper_comparison(results: Results, family: str, title: str = "") -> list[ResultTable]:
    """Return the cells of a family: the paper's numbers, and mean, spread and number of seeds of every file of ours."""
    files = score_files(results, family)
    if not files:
        return []
    printed = (
        SYSTEMS if family == "accuracy" else {cell: _printed(*means) for cell, means in PRINTED.get(family, {}).items()}
    )
    cells = list(dict.fromkeys(str(row[key]) for key, rows in files.values() for row in rows))
    lines = []
    for cell in cells:
        line = [cell, *([printed.get(cell, "")] if printed else [])]
        for key, rows in files.values():
            scores = list(values_by_seed(rows, key, cell, "miou", 100).values())
            if not scores:
                line.append("")
                continue
            score = summarise(scores)
            spread = "" if score.deviation is None else f" ± {score.deviation:.1f}"
            collapsed = sum(has_collapsed(row) for row in rows if row[key] == cell)
            details = (
                f"best {max(scores):.1f}, {score.n} seed{'s' * (score.n > 1)}"
                + f"; {collapsed} collapsed" * bool(collapsed)
            )
            line.append(f"{score.mean:.1f}{spread} ({details})")
        lines.append(line)
    names = [describe_runs(rows) for _, rows in files.values()]
    return [ResultTable(title, ["cell", *([f"the paper, {TITLES[family]}"] if printed else []), *names], lines)]


def _printed(best: float, mean: float) -> str:
    return f"{mean:.1f} (best {best:.1f})"
