"""Verdicts as rows for JSON and for documents, and the paper's tables beside ours."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hamburger.report.statistics import summarise
from hamburger_lab.claims import measures
from hamburger_lab.claims.base import NOT_RUN, WORDS, Claim, Verdict, deciding
from hamburger_lab.claims.measures import Sheet
from hamburger_lab.claims.registry import CLAIMS, FAMILIES
from hamburger_lab.claims.results import Results, Row, by_seed, collapsed
from hamburger_lab.pages.core import markdown_table

Judged = list[tuple[Claim, Verdict]]

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
# whole systems, ResNet-101, multiple scales: VOC test and PASCAL-Context
SYSTEMS = {"nmf": "HamNet 85.9; 55.2", "da": "DANet 82.6; 52.6", "ema": "EMANet -; 53.1"}
TITLES = {
    **{"gradient": "Table 1", "parts": "Table 2", "init": "Table 8", "temperature": "Table 9"},
    "accuracy": "Tables 4 and 5: VOC test; PASCAL-Context",
}
CLIPPED = "With the norm of the gradient held at 1:"


def judged(results: Results) -> Judged:
    return [(claim, claim.judge(results)) for claim in CLAIMS]


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def as_rows(found: Judged) -> list[dict[str, Any]]:
    """What `results/claims.json` holds."""
    rows = []
    for claim, verdict in found:
        telling = verdict.telling
        rows.append(
            {
                "id": claim.id,
                "statement": claim.statement,
                "paper": claim.paper,
                "here": verdict.here or "not run",
                "effect": None if telling is None else rounded(telling.effect),
                "ci": None if telling is None or telling.interval is None else [rounded(x) for x in telling.interval],
                "could_tell": None if telling is None or telling.tells is None else rounded(telling.tells),
                "n_seeds": 1 if verdict.seeds is None else verdict.seeds,
                "verdict": verdict.word,
                "basis": verdict.basis or None,
                "unit": None if telling is None else telling.unit.strip("()") or None,
                "reference": claim.reference,
                "test": claim.test,
                "command": claim.command,
            }
        )
    return rows


def as_json(found: Judged) -> str:
    """One line for each claim, so that a diff shows which verdict changed."""
    return "[\n" + ",\n".join(json.dumps(row) for row in as_rows(found)) + "\n]\n"


def counts(found: Judged) -> str:
    """`12 confirmed, 3 not confirmed, ...`"""
    had = Counter(verdict.word for _, verdict in found)
    return ", ".join(f"{had[word]} {word}" for word in WORDS if had[word])


def effect(verdict: Verdict) -> str:
    telling = verdict.telling
    if telling is None:
        return ""
    said = telling.shown.format(telling.effect)
    if telling.interval is not None:
        said += " [{}, {}]".format(*(telling.shown.format(end) for end in telling.interval))
    return said


def power(verdict: Verdict) -> str:
    """The smallest effect that the seeds of the telling comparison could have told."""
    return "" if verdict.telling is None else verdict.telling.power


def shared(found: Judged) -> dict[str, tuple[list[str], list[str]]]:
    """Trainings on which several verdicts rest: the names of their cells, and the claims that fall together."""
    cells: dict[str, dict[str, None]] = {}
    claims: dict[str, dict[str, None]] = {}
    for claim, verdict in found:
        for label, cell in (one for trial in deciding(verdict.trials) for one in trial.rests):
            cells.setdefault(label, {})[cell] = None
            claims.setdefault(label, {})[claim.id] = None
    return {label: ([*cells[label]], [*ids]) for label, ids in claims.items() if len(ids) > 1}


def together(found: Judged) -> str:
    """The same as a table."""
    lines = [
        [label, ", ".join(f"`{cell}`" for cell in cells), ", ".join(ids)]
        for label, (cells, ids) in shared(found).items()
    ]
    return markdown_table(["trainings", "cells of these trainings", "verdicts that fall together"], lines)


def worded(verdict: Verdict) -> str:
    return f"**{verdict.word}**" + (f", {verdict.basis}" if verdict.basis else "")


def markdown(results: Results) -> str:
    """Every claim with its verdict, family by family."""
    found = judged(results)
    parts = [f"{len(found)} claims: {counts(found)}."]
    for family, title in FAMILIES.items():
        lines = []
        for claim, verdict in found:
            if claim.family == family:
                said = "<br>".join(trial.text for trial in verdict.trials) or "-"
                what = f"{claim.statement} ({claim.reference})"
                lines.append([what, claim.paper, said, effect(verdict), power(verdict), worded(verdict)])
        parts += [f"### {title}", markdown_table(["claim", "paper", "here", "effect", "could tell", "verdict"], lines)]
        for sheet in sheets(results, family):
            parts += [sheet.title] * bool(sheet.title) + [markdown_table(sheet.header, sheet.lines)]
    parts += ["### Verdicts that rest on the same trainings", together(found)] if shared(found) else []
    return "\n\n".join(parts)


def commands(results: Results) -> str:
    """What is left to run, each command once."""
    missing: dict[str, list[str]] = {}
    for claim, verdict in judged(results):
        if verdict.word == NOT_RUN or not any(trial.decides for trial in verdict.trials):
            missing.setdefault(claim.command, []).append(claim.id)
    if not missing:
        return "Nothing is left to run."
    lines = [f"# {', '.join(ids)}\n{command}" for command, ids in missing.items()]
    return "```sh\n" + "\n".join(lines) + "\n```"


def sheets(results: Results, family: str) -> list[Sheet]:
    """The tables under a heading: what was measured, or the cells of the ablation of that name."""
    if family == "cost":
        return [*measures.table3(results), *measures.gradients(results)]
    if family == "gradient":
        return [*side_by_side(results, family), *side_by_side(results, "clip", CLIPPED)]
    if family == "latent":  # whose cells are called by d and r, which mean something else in a head of another width
        apart = [(name, rows) for name, (_, rows) in files(results, family).items()]
        return [
            one for name, rows in apart for one in side_by_side(Results({name: rows}), family, measures.place(rows))
        ]
    own = {"inside": measures.inside, "angles": measures.angles, "steps": measures.sweeps}
    return own[family](results) if family in own else side_by_side(results, family)


def files(results: Results, family: str) -> dict[str, tuple[str, list[Row]]]:
    """Files of scores of a family, by name: the key that names a cell in them, and their rows."""
    sources = {"accuracy": {"ablation_contexts_": "cell", "segmentation_": "context"}}
    found = sources.get(family, {f"ablation_{family}_": "cell"})
    return {name: (key, rows) for prefix, key in found.items() for name, rows in results.beginning(prefix).items()}


def side_by_side(results: Results, family: str, title: str = "") -> list[Sheet]:
    """Cells: what the paper prints where it does, and mean, spread and number of seeds of every file of ours."""
    found = files(results, family)
    if not found:
        return []
    printed = (
        SYSTEMS if family == "accuracy" else {cell: _printed(*own) for cell, own in PRINTED.get(family, {}).items()}
    )
    cells = list(dict.fromkeys(str(row[key]) for key, rows in found.values() for row in rows))
    lines = []
    for cell in cells:
        line = [cell, *([printed.get(cell, "")] if printed else [])]
        for key, rows in found.values():
            had = list(by_seed(rows, key, cell, "miou", 100).values())
            if not had:
                line.append("")
                continue
            score = summarise(had)
            spread = "" if score.deviation is None else f" ± {score.deviation:.1f}"
            lost = sum(collapsed(row) for row in rows if row[key] == cell)
            said = f"best {max(had):.1f}, {score.n} seed{'s' * (score.n > 1)}" + f"; {lost} collapsed" * bool(lost)
            line.append(f"{score.mean:.1f}{spread} ({said})")
        lines.append(line)
    names = [measures.place(rows) for _, rows in found.values()]
    return [Sheet(title, ["cell", *([f"the paper, {TITLES[family]}"] if printed else []), *names], lines)]


def _printed(best: float, mean: float) -> str:
    return f"{mean:.1f} (best {best:.1f})"
