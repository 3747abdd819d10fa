"""Verdicts as JSON rows and Markdown, and the paper's tables next to ours."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

from hamburger.errors import DataError, HamburgerError, shorten
from hamburger.files import encode_json
from hamburger.report.study import has_collapsed, summarise
from hamburger_lab.ablations.grids import ablations
from hamburger_lab.claims.base import MIN_STEPS, NOT_RUN, OUTCOMES, Claim, Verdict, deciding_trials
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
    """Return each claim with its verdict; raise DataError where a row has a value that the claim cannot use."""
    return [(claim, _judge(claim, results)) for claim in CLAIMS]


def _judge(claim: Claim, results: Results) -> Verdict:
    try:
        return claim.judge(results)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as unusable:
        if isinstance(unusable, HamburgerError):
            raise
        raise DataError(
            f"claims: {claim.id} cannot use a row that `{claim.command}` writes ({type(unusable).__name__}: "
            f"{shorten(str(unusable))}); measure it again, or remove its file"
        ) from unusable


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
                "ours": claim.ours,
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


def split_by_origin(verdicts: ClaimVerdicts) -> tuple[ClaimVerdicts, ClaimVerdicts]:
    """Return the paper's claims and our own questions."""
    paper = [pair for pair in verdicts if not pair[0].ours]
    return paper, [pair for pair in verdicts if pair[0].ours]


def count_by_origin(verdicts: ClaimVerdicts) -> str:
    """`The paper's claims: 12 confirmed, ...; our questions: 3 confirmed, ...`"""
    parts = zip(("the paper's claims", "our questions"), split_by_origin(verdicts), strict=True)
    text = "; ".join(f"{name}: {count_verdicts(part)}" for name, part in parts if part)
    return text[0].upper() + text[1:]


EFFECT_HEADER = "effect (points of mIoU unless stated)"
SMALL_SCALE_NOTE = (
    f"Small scale: the comparison is of trainings of fewer than {MIN_STEPS:,} steps; the paper's have 30,000 or more."
)


def effect_parts(verdict: Verdict) -> tuple[str, str, str]:
    """Return the decisive effect, its interval, and its unit where that is not points of mIoU; empty if missing."""
    decisive = verdict.decisive
    if decisive is None:
        return "", "", ""
    write = decisive.template.format
    interval = "" if decisive.interval is None else "[{}, {}]".format(*map(write, decisive.interval))
    return write(decisive.effect), interval, "" if decisive.unit == "points" else decisive.unit.strip("()")


def format_effect(verdict: Verdict) -> str:
    return " ".join(filter(None, effect_parts(verdict)))


def format_power(verdict: Verdict) -> str:
    """Return the smallest effect that the seeds of the decisive comparison could have shown, in the same unit."""
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
    parts = [f"{count_by_origin(verdicts)}. {SMALL_SCALE_NOTE}"]
    for family, title in FAMILIES.items():
        lines = []
        for claim, verdict in verdicts:
            if claim.family == family:
                measured = "<br>".join(trial.text for trial in verdict.trials) or "-"
                statement = f"{claim.statement} ({claim.reference})"
                numbers = format_effect(verdict), format_power(verdict), format_verdict(verdict)
                lines.append([statement, claim.paper, measured, *numbers])
        tables = [markdown_table(["claim", "paper", "here", EFFECT_HEADER, "detectable (same unit)", "verdict"], lines)]
        for table in result_tables(results, family):
            tables += [table.title] * bool(table.title) + [markdown_table(table.header, table.lines)]
        counts = count_by_origin([(claim, verdict) for claim, verdict in verdicts if claim.family == family])
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


def _first_line(function: object) -> str:
    return " ".join(inspect.getdoc(function).split("\n\n")[0].split())  # type: ignore[union-attr]


def heading_anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -").replace(" ", "-")


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
