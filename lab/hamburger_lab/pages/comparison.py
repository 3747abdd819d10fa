"""Columns that tables of trained networks share: scores over seeds and differences to a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hamburger.report.study import compare_paired, summarise
from hamburger_lab.rows import Row

REFERENCES = ("none", "baseline")
COLUMNS = ("spread", "minus none", "95 % interval")  # columns after the score


def rows_by_context(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["context"] or "none", []).append(row)
    return groups


def scores_by_context(rows: Sequence[Row], score: Callable[[Row], float]) -> dict[str, dict[int, float]]:
    """Return context -> seed -> score."""
    return {context: {row["seed"]: score(row) for row in group} for context, group in rows_by_context(rows).items()}


def ranked_cells(
    scores: Mapping[str, Mapping[int, float]], digits: int, *, lower_is_better: bool = False
) -> dict[str, list[str]]:
    """Return context -> mean, standard deviation, difference to the reference and its interval; best first.

    Differences are paired by seed. The reference is the network without a context, if there is one.
    """
    reference = next((name for name in REFERENCES if name in scores), None)
    means = {context: summarise(list(by_seed.values())) for context, by_seed in scores.items()}
    best_first = sorted(means, key=lambda name: means[name].mean if lower_is_better else -means[name].mean)
    cells = {}
    for context in best_first:
        summary = means[context]
        gain = None if reference in (None, context) else compare_paired(scores[context], scores[str(reference)])
        ends = gain.interval if gain is not None and gain.interval is not None else ()
        cells[context] = [
            f"{summary.mean:.{digits}f}",
            "" if summary.deviation is None else f"{summary.deviation:.{digits}f}",
            "" if gain is None else f"{gain.mean:+z.{digits}f}",
            " ... ".join(f"{end:+z.{digits}f}" for end in ends),
        ]
    return cells


def format_seeds(scores: Mapping[int, float], digits: int) -> str:
    return ", ".join(f"{value:.{digits}f}" for _, value in sorted(scores.items()))


def format_field_mean(rows: Sequence[Row], field: str, form: str) -> str:
    """Return the mean over the rows that have the field; empty if none has."""
    values = [row[field] for row in rows if row.get(field) is not None]
    return format(summarise(values).mean, form) if values else ""


def format_field(row: Row, field: str, form: str) -> str:
    """Return the measurement, or the note that says why it is missing."""
    return row["note"] or "" if row[field] is None else format(row[field], form)


def list_seeds(rows: Sequence[Row]) -> str:
    return ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))


def list_commits(rows: Sequence[Row]) -> str:
    return ", ".join(sorted({str(row["commit"]) for row in rows}))


def describe_environment(rows: Sequence[Row]) -> str:
    return f"{rows[0]['hardware']}, torch {rows[0]['torch']}, commit {list_commits(rows)}."
