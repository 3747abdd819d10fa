"""Rows of `ham compare` and `ham eval` on stereo pairs -> the tables of docs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hamburger.analysis.core_page import markdown_table
from hamburger.analysis.report.statistics import paired, summarise
from hamburger.recipes.kinds import STEREO

Row = dict[str, Any]
REFERENCES = ("none", "baseline")


def compared(rows: Sequence[Row]) -> str:
    """Errors of every context over its seeds, their paired difference to none, and what it costs; best first."""
    if not rows:
        return "No rows yet."
    names = list(dict.fromkeys(row["context"] for row in rows))
    own = {name: [row for row in rows if row["context"] == name] for name in names}
    errors = {name: {row["seed"]: row["epe"] for row in mine} for name, mine in own.items()}
    reference = next((name for name in REFERENCES if name in errors), None)
    lines = []
    for name in sorted(names, key=lambda name: summarise(list(errors[name].values())).mean):
        found = summarise(list(errors[name].values()))
        against = None if reference in (None, name) else paired(errors[name], errors[str(reference)])
        lines.append(
            [
                name,
                f"{found.mean:.3f}",
                "" if found.deviation is None else f"{found.deviation:.3f}",
                "" if against is None else f"{against.mean:+.3f}",
                "" if against is None or against.interval is None else "{:+.3f} ... {:+.3f}".format(*against.interval),
                *(_share(own[name], field) for field in ("over_1", "over_3")),
                *(_mean(own[name], field, ".3f") for field in ("epe_pair_mean", "epe_seen")),
                _mean(own[name], "images_per_s", ".0f"),
                _mean(own[name], "peak_mb", ",.0f"),
            ]
        )
    header = ["context", "EPE, px", "spread", "over none", "95 % interval", "> 1 px, %", "> 3 px, %"]
    header += [_heading(rows, "epe_pair_mean"), _heading(rows, "epe_seen"), "images/s", "peak MiB"]
    first = rows[0]
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    note = (
        f"Recipe `{first['recipe']}`, {first['steps']} steps of {first['batch']} pairs, precision "
        f"{first['precision']}, errors of the last step ({first['protocol']}), {first['images']} pairs of the "
        f"validation split, seeds {seeds}; spread is the standard deviation over seeds, differences are paired by "
        f"seed, below 0 is better. {_where(rows)}"
    )
    return f"{markdown_table(header, lines)}\n\n{note}"


def real(rows: Sequence[Row]) -> str:
    """The same weights on photographs: the error of each pair, mean over seeds. A table for each size of the pairs."""
    sizes: dict[int, list[Row]] = {}
    for row in rows:
        sizes.setdefault(row["shrink"], []).append(row)
    return "\n\n".join(_real(sizes[shrink]) for shrink in sorted(sizes)) or "No rows yet."


def _real(rows: Sequence[Row]) -> str:
    pairs = list(rows[0]["per_pair"])
    by_context: dict[str, list[Row]] = {}
    for row in rows:
        by_context.setdefault(row["context"] or "none", []).append(row)
    lines = [
        [
            name,
            *(f"{summarise([row['per_pair'][pair] for row in own]).mean:.2f}" for pair in pairs),
            *(_mean(own, field, ".2f") for field in ("epe", "epe_pair_mean", "epe_seen")),
            _share(own, "over_3"),
            str(len(own)),
        ]
        for name, own in sorted(by_context.items(), key=lambda item: summarise([row["epe"] for row in item[1]]).mean)
    ]
    header = ["context", *(f"{pair}, px" for pair in pairs), "all pixels, px"]
    header += [_heading(rows, "epe_pair_mean"), _heading(rows, "epe_seen"), "> 3 px, %", "seeds"]
    options = rows[0].get("options") or {}
    said = "" if not options else f" with {', '.join(f'{key}={value}' for key, value in options.items())}"
    note = f"End-point errors on `{rows[0]['data']}`{said} ({rows[0]['protocol']}), means over seeds. {_where(rows)}"
    return f"{markdown_table(header, lines)}\n\n{note}"


def _heading(rows: Sequence[Row], field: str) -> str:
    """As everywhere else, with the number of pairs where not all have what the score needs."""
    score = next(score for score in STEREO.scores if score.name == field)
    return score.told(rows[0], STEREO.member).heading


def _where(rows: Sequence[Row]) -> str:
    commits = ", ".join(sorted({str(row["commit"]) for row in rows}))
    return f"{rows[0]['hardware']}, torch {rows[0]['torch']}, commit {commits}."


def _mean(rows: Sequence[Row], field: str, form: str) -> str:
    had = [row[field] for row in rows if row.get(field) is not None]
    return format(summarise(had).mean, form) if had else ""


def _share(rows: Sequence[Row], field: str) -> str:
    return f"{100 * summarise([row[field] for row in rows]).mean:.1f}"
