"""Verdicts and Markdown tables of the study, computed from its JSON file.

Keys of rows are the headings of columns; `final` is the largest K of each ham.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hamburger_lab.markdown import collapsed, markdown_table
from hamburger_lab.rows import Row

CaseKey = tuple[str, str, float | None]

TENTH_PERCENT = 1e-3


def _converges_linearly(row: Row) -> bool:
    return row["converged at"] is not None and row["rate"] is not None and row["rate"] < 1


def _below_bound(row: Row) -> bool | None:
    return None if row["bound"] is None else bool(row["through steps"] <= row["bound"])


def _is_at_least(value: float | None, least: float) -> bool:
    return value is not None and value >= least


# Claim of section 2.3 -> whether it holds for one solve; None if it does not apply to that solve.
CLAIMS: dict[str, Callable[[Row], bool | None]] = {
    "L_h < 1 on the path": lambda row: row["L_h"] < 1,
    "spectral radius < 1 at the end": lambda row: row["radius final"] < 1 and not row["at one"],
    "Prop. 1: linear convergence": _converges_linearly,
    "Prop. 2: BPTT reaches the implicit gradient": lambda row: row["proposition-2 distance K=final"] <= TENTH_PERCENT,
    "Prop. 3: dy/dh0 -> 0": lambda row: row["dy/dh0"] <= TENTH_PERCENT * row["L_G"],
    "Prop. 3: bound, where L_h < 1": _below_bound,
    "terms of Eq. 12 decay (q < 1)": lambda row: row["envelope"] < 1,
    "one-step within 60 degrees of BPTT, K=6": lambda row: _is_at_least(row["one-step cosine K=6"], 0.5),
    "truncated:1 within 60 degrees of BPTT, K=6": lambda row: _is_at_least(row["truncated:1 cosine K=6"], 0.5),
}

TABLES: dict[str, tuple[str, ...]] = {
    "Contraction of the iterates, NMF with unit columns": ("rate", "worst ratio", "converged at", "last update"),
    "Contraction of the iterates, NMF without unit columns": ("rate raw", "radius unit columns"),
    "Spectrum of dF/dh at K = 6 (early) and at the final K": (
        "radius early",
        "norm early",
        "radius final",
        "norm final",
        "at one",
        "rank of bases",
    ),
    "Terms of Eq. 12, operator norms": (
        "L_h",
        "dy/dh0",
        "direct",
        "first term",
        "largest term at",
        "last over first",
        "envelope",
    ),
    "Gradients: cosine to BPTT": tuple(
        f"{name} cosine K={k}" for k in ("6", "50", "final") for name in ("one-step", "truncated:1")
    ),
    "Gradients: norm relative to BPTT": tuple(
        f"{name} norm K={k}" for k in ("6", "50", "final") for name in ("one-step", "truncated:1")
    ),
    "Gradients: norm of BPTT for a cotangent of norm 1": tuple(f"bptt norm K={k}" for k in ("1", "6", "50", "final")),
    "Gradients: distance of Proposition 2 from BPTT": tuple(
        f"proposition-2 distance K={k}" for k in ("6", "50", "200", "final")
    ),
}


def rows_by_case(result: dict[str, Any]) -> dict[CaseKey, list[Row]]:
    """Return case -> rows of all its seeds, in the order of the study."""
    grouped: dict[CaseKey, list[Row]] = {}
    for row in result["rows"]:
        grouped.setdefault((row["input"], row["ham"], row["temperature"]), []).append(row)
    return grouped


def count_verdicts(result: dict[str, Any]) -> dict[str, dict[CaseKey, tuple[int, int]]]:
    """Return claim -> case -> (seeds where it holds, seeds to which it applies)."""
    counts: dict[str, dict[CaseKey, tuple[int, int]]] = {}
    for claim, holds in CLAIMS.items():
        counts[claim] = {}
        for case, rows in rows_by_case(result).items():
            verdicts = [verdict for row in rows if (verdict := holds(row)) is not None]
            counts[claim][case] = (sum(verdicts), len(verdicts))
    return counts


def case_label(case: CaseKey) -> str:
    _, ham, temperature = case
    return ham if temperature is None else f"{ham}, T={temperature:g}"


def verdict_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and lines: one line per case, one column per claim, cells "seeds where it holds / seeds"."""
    verdicts = count_verdicts(result)
    header = ["input", "ham", *CLAIMS]
    lines = []
    for case in rows_by_case(result):
        counts = [verdicts[claim][case] for claim in CLAIMS]
        lines.append(
            [case[0], case_label(case), *(f"{held}/{applicable}" if applicable else "-" for held, applicable in counts)]
        )
    return header, lines


def format_range(values: Sequence[float | None]) -> str:
    """Return `mean [min, max]` over the seeds that have a value, with their number if some have none."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = sum(known) / len(known)
    text = (
        _number(mean) if min(known) == max(known) else f"{_number(mean)} [{_number(min(known))}, {_number(max(known))}]"
    )
    return text if len(known) == len(values) else f"{text} ({len(known)} of {len(values)})"


def _number(value: float) -> str:
    # near 1 show the distance from 1
    if value != 1 and abs(value - 1) < 5e-3:
        return f"1{value - 1:+.1e}"
    return f"{value:.3g}"


def refusal_lines(result: dict[str, Any]) -> list[list[str]]:
    """Return where `grad="implicit"` refused: input, ham, seeds for each K, and distance from the fixed point."""
    lines = []
    ks = [key.removeprefix("implicit refused K=") for key in result["rows"][0] if key.startswith("implicit refused")]
    for case, rows in rows_by_case(result).items():
        counts = [sum(row[f"implicit refused K={k}"] is not None for row in rows) for k in ks]
        drifts = [row[f"implicit drift K={k}"] for k in ks for row in rows]
        lines.append([case[0], case_label(case), *(f"{count}/{len(rows)}" for count in counts), format_range(drifts)])
    return [
        ["input", "ham", *(f"K={k}" for k in ks), "distance from the fixed point where refused"],
        *lines,
    ]


def study_markdown(result: dict[str, Any]) -> str:
    """Return the protocol and every table of the study as Markdown, each collapsed."""
    protocol, environment = result["protocol"], result["environment"]
    parts = [
        f"Protocol: x {tuple(protocol['shape'])}, rank {protocol['rank']}, {protocol['dtype']}, seeds 0 to "
        f"{protocol['seeds'] - 1}; final K = {protocol['final_steps_nmf']} (NMF), "
        f"{protocol['final_steps_soft']} (VQ, CD); terms of Eq. 12 at K = {protocol['term_steps']}. "
        f"torch {environment['torch']}, {environment['hardware']}. Cells: mean [min, max] over seeds.",
        collapsed(
            "Verdicts: seeds where the claim holds / seeds to which it applies", markdown_table(*verdict_table(result))
        ),
    ]
    for title, columns in TABLES.items():
        present = [column for column in columns if column in result["rows"][0]]
        lines = [
            [case[0], case_label(case), *(format_range([row[column] for row in rows]) for column in present)]
            for case, rows in rows_by_case(result).items()
            if all(column in rows[0] for column in present)
        ]
        parts += [collapsed(title, markdown_table(["input", "ham", *present], lines))]
    same, pairs = shared_radii(result)
    parts.append(f"VQ and CD end with the same spectral radius (within 1e-4) in {same} of {pairs} pairs of solves.")
    header, *lines = refusal_lines(result)
    parts += [collapsed("Seeds where `implicit` refuses", markdown_table(header, lines))]
    return "\n\n".join(parts) + "\n"


def shared_radii(result: dict[str, Any]) -> tuple[int, int]:
    """Return how many pairs of VQ and CD solves have the same spectral radius, and the number of pairs."""
    radii: dict[tuple[Any, ...], list[float]] = {}
    for row in result["rows"]:
        if row["ham"] in ("VQ", "CD"):
            radii.setdefault((row["input"], row["temperature"], row["seed"]), []).append(row["radius final"])
    return sum(abs(a - b) <= 1e-4 for a, b in radii.values()), len(radii)
