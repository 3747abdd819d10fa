"""Tables of measurements: inside networks, over trainings, and of gradients; mean and spread over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hamburger.report.study import summarise
from hamburger_lab.paper import SIZE, TABLE3, TABLE6, printed_by_context
from hamburger_lab.rows import Results, Row


class ResultTable(NamedTuple):
    """A table; `title` is empty if the header is enough."""

    title: str
    header: list[str]
    lines: list[list[str]]


def format_mean(values: Iterable[float | None], form: str = "{:.2f}") -> str:
    """Mean and standard deviation over seeds; empty where nothing was measured."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    summary = summarise(known)
    return form.format(summary.mean) + ("" if summary.deviation is None else f" ± {form.format(summary.deviation)}")


def describe_runs(rows: list[Row]) -> str:
    first = rows[0]
    return f"{first['recipe']}, {first['steps']} steps, {first['hardware']}"


def inside_tables(results: Results) -> list[ResultTable]:
    """Ranks and spectra of trained networks (Fig. 5), silent channels (Fig. 6)."""
    forms = {"n": "{:.0f}", "A: numerical rank": "{:.0f}"}
    columns: dict[str, Callable[[Row], float | None]] = {
        "effective rank before": lambda row: row["rank_before"],
        "after": lambda row: row["rank_after"],
        "of D C": lambda row: row.get("rank_ham"),
        "of A": lambda row: row.get("rank_attention"),
        "A: values for 90 %": lambda row: row.get("rank90_attention"),
        "without the common row": lambda row: row.get("rank90_centred"),
        "A: numerical rank": lambda row: row.get("numerical_attention"),
        "n": lambda row: row.get("positions"),
        "silent before, %": lambda row: 100 * row["silent_before"],
        "silent after, %": lambda row: 100 * row["silent_after"],
    }
    tables = []
    for rows in results.with_prefix("ablation_inside_").values():
        measured = [row for row in rows if "rank_before" in row]
        cells = dict.fromkeys(row["cell"] for row in measured)
        lines = []
        for cell in cells:
            cell_rows = [row for row in measured if row["cell"] == cell]
            texts = [format_mean(map(read, cell_rows), forms.get(name, "{:.2f}")) for name, read in columns.items()]
            texts = [text.removesuffix(" ± 0") for text in texts]  # n does not depend on the seed
            lines.append([cell.removesuffix("-inside"), *texts, str(len(cell_rows))])
        tables.append(ResultTable(describe_runs(rows), ["network", *columns, "seeds"], lines))
    return tables


def angle_tables(results: Results) -> list[ResultTable]:
    """Gradients over a training: means over the measured steps."""
    tables = []
    for rows in results.with_prefix("ablation_angles_").values():
        lines = []
        for cell in dict.fromkeys(row["cell"] for row in rows):
            series_of_cell = [row["angles"] for row in rows if row["cell"] == cell]
            line = [cell.removesuffix("-angles")]
            for at in ("input", "weights"):
                for strategy in ("one_step", "truncated1", "truncated2"):
                    line.append(format_mean(_mean(series, f"cosine_{at}_{strategy}") for series in series_of_cell))
                line.append(format_mean(_ratio(series, at) for series in series_of_cell))
            lines.append([*line, str(len(series_of_cell))])
        parts = ["one-step", "truncated:1", "truncated:2", "norm, one-step / BPTT"]
        header = ["ham", *(f"X: {part}" for part in parts), *(f"weights: {part}" for part in parts), "seeds"]
        tables.append(ResultTable(f"{describe_runs(rows)}: cosines to BPTT", header, lines))
    return tables


def steps_tables(results: Results) -> list[ResultTable]:
    """mIoU by the steps of training and of evaluation (Figs. 4 and 7 to 9): one line per training."""
    tables = []
    for rows in results.with_prefix("ablation_steps_").values():
        scores: dict[tuple[str, int], dict[int, list[float]]] = {}
        for row in (row for row in rows if row.get("miou") is not None):
            ham, _, rest = str(row["cell"]).partition("-k")
            own_k, _, other_k = rest.partition("-at")
            by_steps = scores.setdefault((ham, int(own_k)), {})
            by_steps.setdefault(int(other_k or own_k), []).append(100 * row["miou"])
        ks = sorted({k for by_steps in scores.values() for k in by_steps})
        lines = []
        for (ham, trained), by_steps in scores.items():
            seeds = sorted({len(values) for values in by_steps.values()})
            line = [f"{ham}, K = {trained}", *(format_mean(by_steps.get(k, ()), "{:.1f}") for k in ks)]
            lines.append([*line, " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))])
        title = f"{describe_runs(rows)}: mIoU; lines: K in training, columns: K in evaluation"
        tables.append(ResultTable(title, ["trained with", *(f"K = {k}" for k in ks), "seeds"], lines))
    return tables


def paper_table3_tables(results: Results) -> list[ResultTable]:
    """Table 3 at its own size: ours, and in brackets what the paper prints."""
    tables = []
    fields = {"train_mb": "train MiB", "infer_mb": "infer MiB", "train_ms": "train ms", "infer_ms": "infer ms"}
    for rows in results.with_prefix("table3_h").values():
        measured = {row["module"]: row for row in rows if row["n"] == SIZE and row["dtype"] == "float32"}
        lines = []
        for module, printed in TABLE3.items():
            name = "sa-materialised" if module == "sa" else module
            if name in measured:
                figures = [(measured[name][field], getattr(printed, field)) for field in fields]
                lines.append([name, *(f"{_number(ours)} ({_number(theirs)})" for ours, theirs in figures)])
        title = f"Table 3, n = {SIZE:,}, float32: {rows[0]['hardware']}, in brackets: the paper, TITAN Xp"
        tables += [ResultTable(title, ["module", *fields.values()], lines)] if lines else []
    return tables


def distance_tables(results: Results) -> list[ResultTable]:
    """Table 6: the paper's FID, and distances of every file of ours by another network."""
    files = {name: rows for name, rows in results.with_prefix("gan_").items() if rows[0].get("device") == "cuda"}
    files = {name: rows for name, rows in files.items() if len({row["context"] for row in rows}) > 1}
    printed, lines = printed_by_context(TABLE6), []
    for context in dict.fromkeys(row["context"] for rows in files.values() for row in rows):
        ours = [[row["frechet"] for row in rows if row["context"] == context] for rows in files.values()]
        lines.append([context, printed.get(context, ""), *map(format_mean, ours)])
    title = "Fréchet distances: the paper's on ImageNet by Inception (FID), ours by EfficientNet-Lite0, not comparable"
    header = ["context", "the paper, Table 6", *(describe_runs(rows) for rows in files.values())]
    return [ResultTable(title, header, lines)] if lines else []


def _number(value: float | None) -> str:
    """Three digits, without a power of ten."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def gradient_tables(results: Results) -> list[ResultTable]:
    """Time and memory of each gradient of a ham."""
    tables = []
    for rows in results.with_prefix("gradients_").values():
        first = rows[0]
        lines = []
        for row in rows:
            refused = " (refused)" if row["refused"] else ""
            sizes = [f"{row['n']:,}", str(row["steps"])]
            times = [f"{row['ms']:.1f} ± {row['ms_iqr'] / 2:.1f}", f"{row['mb']:.1f}"]
            lines.append([row["ham"], f"{row['grad']}{refused}", *sizes, *times])
        about = (
            f"{first['hardware']}, d = {first['d']}, r = {first['r']}, b = {first['b']}, {first['dtype']}, plain torch"
        )
        title = f"Forward and backward of a ham, {about}: median of {first['repeats']} ± half the interquartile range"
        tables.append(ResultTable(title, ["ham", "gradient", "n", "K", "ms", "peak MiB"], lines))
    return tables


def _mean(series: list[Row], key: str) -> float | None:
    known = [row[key] for row in series if row.get(key) is not None]
    return statistics.fmean(known) if known else None


def _ratio(series: list[Row], at: str) -> float | None:
    norms = [(row[f"norm_{at}_one_step"], row[f"norm_{at}_bptt"]) for row in series]
    return statistics.fmean(one / all_ for one, all_ in norms) if all(one and all_ for one, all_ in norms) else None
