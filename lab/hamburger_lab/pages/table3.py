"""Tables of docs/table3.md and README, from rows of `ham bench table3`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hamburger_lab.bench.table3_names import COMPILED
from hamburger_lab.bench.table3_view import (
    LEAST_MS,
    describe_growth,
    describe_samples,
    format_macs,
    format_number,
    format_params,
    growth_sizes,
)
from hamburger_lab.bench.timed_module import MIN_SAMPLES
from hamburger_lab.markdown import collapsed, markdown_table
from hamburger_lab.paper import SIZE, TABLE3
from hamburger_lab.rows import Row, select_rows

DAGGER = "†"
OLDER = "older protocol (every call synchronised and timed alone)"
FIELDS = {
    "infer_ms": "Inference, ms",
    "train_ms": "Forward and backward, ms",
    "infer_mb": "Inference, peak MiB",
    "train_mb": "Forward and backward, peak MiB",
}


def most_common_commit(rows: Sequence[Row]) -> str:
    """Return the commit of most rows; rows of other commits are marked."""
    return Counter(str(row["commit"]) for row in rows).most_common(1)[0][0]


def rows_by_commit(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return commit -> rows, the most common commit first."""
    first = most_common_commit(rows)
    groups: dict[str, list[Row]] = {first: []}
    for row in rows:
        groups.setdefault(str(row["commit"]), []).append(row)
    return groups


def describe_protocol(rows: Sequence[Row]) -> str:
    """Return hardware, sizes and protocol of the rows of the most common commit."""
    commit, measured = next(iter(rows_by_commit(rows).items()))
    first = measured[0]
    backends = " and ".join(sorted({row["backend"] for row in measured if "backend" in row}))
    hams = f"our hams by backend {backends}, " if backends else ""
    return (
        f"{first['hardware']}, {first['dtype']}, b = {first['batch']}, c = {first['channels']}, "
        f"torch {first['torch']}, {first['threads']} CPU threads, {hams}"
        f"medians of {describe_samples(measured)} on alternating inputs, seed {first['seed']}, commit {commit}."
    )


def format_cell(row: Row, field: str, commit: str) -> str:
    """Return a number with a star if it has few samples, and a dagger if its row has another commit."""
    other = row[field] is not None and str(row["commit"]) != commit
    return format_number(row[field]) + ("*" if has_few_samples(row, field) else "") + (DAGGER if other else "")


def has_few_samples(row: Row, field: str) -> bool:
    mode, _, unit = field.partition("_")
    count = row.get(f"{mode}_repeats")
    return unit == "ms" and count is not None and count < MIN_SAMPLES


def describe_caveats(rows: Sequence[Row]) -> str:
    """Return notes on rows of other commits, older protocols and few samples, each after a space."""
    notes = []
    for commit, commit_rows in rows_by_commit(rows).items():
        measured = [row for row in commit_rows if any(row[field] is not None for field in FIELDS)]
        older = bool(measured) and not any(row.get("infer_block") for row in measured)
        if measured and commit != most_common_commit(rows):
            notes.append(
                f" †: commit {commit}, medians of {describe_samples(measured)}{', ' + OLDER if older else ''}."
            )
        elif older:
            notes.append(f" {OLDER.capitalize()}.")
    if any(has_few_samples(row, field) for row in rows for field in FIELDS):
        notes.append(f" *: median of fewer than {MIN_SAMPLES} samples.")
    return "".join(notes)


def eager_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without compiled modules, which have their own table."""
    return [row for row in rows if not row["module"].endswith(COMPILED)]


def list_modules(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["module"] for row in rows))


def against_paper(rows: Sequence[Row], dtype: str) -> str:
    """Return Table 3 at the paper's size: our numbers, and the paper's in brackets."""
    rows = eager_rows(select_rows(rows, n=SIZE, dtype=dtype))
    commit = most_common_commit(rows)
    lines = []
    for row in rows:
        printed = TABLE3.get(row["module"])

        def with_printed(text: str, field: str, printed: object = printed) -> str:
            return f"{text} ({getattr(printed, field):g})" if printed is not None else text

        lines.append(
            [
                row["module"],
                with_printed(format_params(row["params"]), "params"),
                with_printed(format_macs(row["macs"]), "macs"),
                *(
                    with_printed(format_cell(row, field, commit), field)
                    for field in ("train_mb", "infer_mb", "train_ms", "infer_ms")
                ),
            ]
        )
    header = ["module", "params, 2^20", "MACs, 10^9", "train MiB", "infer MiB", "train ms", "infer ms"]
    notes = [f"- {row['module']}: {row['note']}." for row in rows if "printed" in row["note"]]
    return "\n".join([markdown_table(header, lines), "", describe_protocol(rows) + describe_caveats(rows), "", *notes])


def over_sizes(rows: Sequence[Row], dtype: str) -> str:
    """Return each measure by n and its growth exponent, in collapsed tables."""
    every = select_rows(rows, dtype=dtype)
    rows, commit = eager_rows(every), most_common_commit(every)
    sizes = sorted({row["n"] for row in rows})
    parts = [
        f"{describe_protocol(every)}{describe_caveats(every)} p is the growth exponent between the sizes next to it. "
        f"For times these are the two largest whose calls take more than {LEAST_MS:g} ms; ~ marks pairs with a shorter "
        f"call, which may be launch-bound."
    ]
    for field, title in FIELDS.items():
        lines = []
        for module in list_modules(rows):
            by_size = {row["n"]: row for row in select_rows(rows, module=module)}
            shown = [format_cell(by_size[n], field, commit) if n in by_size else format_number(None) for n in sizes]
            lines.append([module, *shown, *growth_cells(by_size, field, commit)])
        parts.append(collapsed(title, markdown_table(["module", *(f"{n:,}" for n in sizes), "p", "between"], lines)))
    return "\n\n".join([*parts, *under_compile(every, commit)])


def growth_cells(by_size: dict[int, Row], field: str, commit: str) -> tuple[str, str]:
    """Return the exponent and its sizes, with a dagger if one of the two rows has another commit.

    Empty if only one of the two rows chose between builds: they are not comparable.
    """
    figures = {n: row[field] for n, row in by_size.items()}
    p, between = describe_growth(figures, field)
    pair = [by_size[n] for n in growth_sizes(figures, field)]
    if len({str(row["commit"]) for row in pair}) > 1 and len({bool(row["note"]) for row in pair}) > 1:
        return "", ""
    return p + DAGGER * any(str(row["commit"]) != commit for row in pair), between


def under_compile(rows: Sequence[Row], commit: str) -> list[str]:
    """Return a collapsed table of compiled modules next to their eager times."""
    lines = []
    for row in rows:
        if row["module"].endswith(COMPILED):
            name = row["module"].removesuffix(COMPILED)
            plain = next(iter(select_rows(rows, module=name, n=row["n"])), None)
            pairs = [
                format_number(None) if variant is None else format_cell(variant, field, commit)
                for field in ("infer_ms", "train_ms")
                for variant in (plain, row)
            ]
            lines.append([name, f"{row['n']:,}", *pairs])
    if not lines:
        return []
    header = ["module", "n", "infer ms, eager", "compiled", "train ms, eager", "compiled"]
    return [collapsed("Under torch.compile", markdown_table(header, lines))]


HEADLINE = ("nmf", "authors-nmf", "sa-flash", "a2", "efficient", "ema")


def headline(rows: Sequence[Row]) -> str:
    """Return inference and training times of the ham, attention and linear rivals, bfloat16, by n."""
    rows = [row for row in select_rows(rows, dtype="bfloat16") if row["module"] in HEADLINE]
    sizes, commit = sorted({row["n"] for row in rows}), most_common_commit(rows)
    lines = []
    for module in HEADLINE:
        by_size = {
            row["n"]: f"{format_cell(row, 'infer_ms', commit)} / {format_cell(row, 'train_ms', commit)}"
            for row in select_rows(rows, module=module)
        }
        lines.append([module, *(by_size.get(n, format_number(None)) for n in sizes)])
    table = markdown_table(["module, ms", *(f"n = {n:,}" for n in sizes)], lines)
    return f"{table}\n\n{describe_protocol(rows)}{describe_caveats(rows)}"


RIVALS = ("authors-nmf", "sa-flash", "a2", "efficient")


def against_ham(rows: Sequence[Row], ham: str = "nmf") -> str:
    """Return times of rivals and a ham in bfloat16, eager and compiled, by n, with the ratio to the ham.

    Rows of different commits come from different runs and get no ratio.
    """
    shown = (ham, *RIVALS, *(name + COMPILED for name in RIVALS))
    rows = [row for row in select_rows(rows, dtype="bfloat16") if row["module"] in shown]
    sizes, commit = sorted({row["n"] for row in rows}), most_common_commit(rows)
    ours = {row["n"]: row for row in select_rows(rows, module=ham)}
    lines = []
    for module in (name for name in shown if name in list_modules(rows)):
        by_size = {row["n"]: row for row in select_rows(rows, module=module)}
        for field, label in (("infer_ms", "inference"), ("train_ms", "forward and backward")):
            cells = [_ratio_cell(by_size.get(n), ours.get(n), field, commit, is_ham=module == ham) for n in sizes]
            lines.append([module, label, *cells])
    table = markdown_table(["module", "ms (ratio to ours)", *(f"n = {n:,}" for n in sizes)], lines)
    return f"{table}\n\n{describe_protocol(rows)}{describe_caveats(rows)}"


def _ratio_cell(row: Row | None, ours: Row | None, field: str, commit: str, *, is_ham: bool) -> str:
    if row is None or row[field] is None:
        return format_number(None)
    shown = format_cell(row, field, commit)
    if is_ham or ours is None or not ours[field] or ours["commit"] != row["commit"]:
        return shown
    return f"{shown} ({row[field] / ours[field]:.2f})"
