"""Tables of the hams alone: `ham bench core`, `ham bench ham` and `ham bench profile`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hamburger_lab.bench.common import growth_exponent
from hamburger_lab.bench.profile import kernel_lines
from hamburger_lab.markdown import collapsed, markdown_table
from hamburger_lab.rows import Row, select_rows

NAMES = {"authors-eager": "authors' code, eager", "sklearn": "scikit-learn NMF-MU", "sdpa": "self-attention (SDPA)"}


def core_protocol(rows: Sequence[Row]) -> str:
    r = rows[0]
    return (
        f"{r['hardware']}, {r['threads']} threads, {r['dtype']}, torch {r['torch']}, b = {r['b']}, d = {r['d']}, "
        f"r = {r['r']}, K = {r['steps']}, median of {r['repeats']} interleaved rounds on fresh inputs, "
        f"seed {r['seed']}, commit {r['commit']}"
    )


def core_speed_table(rows: Sequence[Row]) -> str:
    """Return the inference time of our hams, and of every rival relative to ours, at three sizes."""
    sizes = sorted({row["n"] for row in rows})
    sizes = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    lines = []
    for ham in dict.fromkeys(row["ham"] for row in rows):
        for n in sizes:
            by_contender = {row["contender"]: row for row in select_rows(rows, ham=ham, n=n, mode="infer")}
            ratios = [f"{by_contender[name]['ratio']:.2f}" if name in by_contender else "" for name in NAMES]
            ours = by_contender["hamburger"]
            lines.append([ham, f"{n:,}", f"{ours['ms']:.1f} ({ours['ms_iqr']:.1f})", *ratios])
    header = ["ham", "n", "ours, ms (IQR)", *NAMES.values()]
    note = "Inference of the ham alone. The last three columns are times divided by ours: above 1, ours is faster."
    return f"{markdown_table(header, lines)}\n\n{note} {core_protocol(rows)} (`ham bench core`)."


def core_table(rows: Sequence[Row]) -> str:
    """Return all measurements and their growth with n; the long table is collapsed."""
    lines = [
        [
            row["ham"],
            row["mode"],
            row["contender"],
            f"{row['n']:,}",
            f"{row['ms']:.2f}",
            f"{row['ms_iqr']:.2f}",
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    exponents = []
    for ham, mode, contender in dict.fromkeys((row["ham"], row["mode"], row["contender"]) for row in rows):
        measured = select_rows(rows, ham=ham, mode=mode, contender=contender)
        p = growth_exponent([row["n"] for row in measured], [row["ms"] for row in measured])
        exponents.append([ham, mode, contender, f"{p:.2f}"])
    return "\n\n".join(
        [
            core_protocol(rows) + ".",
            "Growth: p in time ~ n^p.",
            markdown_table(["ham", "mode", "contender", "p"], exponents),
            collapsed(
                f"All {len(lines)} measurements",
                markdown_table(["ham", "mode", "contender", "n", "ms", "IQR", "time / ours"], lines),
            ),
        ]
    )


def roofline_table(rows: Sequence[Row]) -> str:
    """Return the time of each ham and backend by n, and the fraction of the roofline that it reaches."""
    sizes = sorted({row["n"] for row in rows})
    kinds = dict.fromkeys((row["ham"], row["mode"], row["backend"]) for row in rows)
    lines = []
    for ham, mode, backend in kinds:
        by_size = {row["n"]: row for row in select_rows(rows, ham=ham, mode=mode, backend=backend)}
        shown = [
            f"{by_size[n]['ms']:.3f} ({by_size[n]['fraction_of_floor']:.2f})" if n in by_size else "" for n in sizes
        ]
        lines.append([ham, mode, backend, *shown])
    first = rows[0]
    note = (
        f"{first['hardware']}, {first['dtype']}, b = {first['b']}, d = {first['d']}, r = {first['r']}, "
        f"K = {first['steps']}, torch {first['torch']}, medians of {first['repeats']} samples, seed {first['seed']}, "
        f"commit {first['commit']}. The roofline uses products at {first['tflops']:.0f} TFLOP/s and copies at "
        f"{first['gbs']:.0f} GB/s, measured in the same run."
    )
    header = ["ham", "mode", "backend", *(f"n = {n:,}" for n in sizes)]
    return f"{markdown_table(header, lines)}\n\n{note}"


STAGE_NAMES = {"bread": "behind a bread"}
SHOWN_STAGE = "bread"


def columns_error_table(rows: Sequence[Row]) -> str:
    """Return the errors by K from both starts: one stage of the pretrained network, then everything, collapsed."""
    counts = sorted({row["steps"] for row in rows})
    kinds = dict.fromkeys((row["weights"], row["stage"], row["ham"], row["init"]) for row in rows)
    lines = {}
    for weights, stage, ham, start in kinds:
        kind = select_rows(rows, weights=weights, stage=stage, ham=ham, init=start)
        errors = {row["steps"]: f"{row['error']:.3f}" for row in kind}
        where = f"{STAGE_NAMES.get(stage, stage)} ({kind[0]['d']} x {kind[0]['n']:,})"
        lines[weights, stage, ham, start] = [ham, where, start, *(errors.get(count, "") for count in counts)]
    first = rows[0]
    header = ["ham", "X of ResNet-50", "start", *(f"K = {count}" for count in counts)]
    shown = [lines[kind] for kind in kinds if kind[0] == "imagenet" and kind[1] == SHOWN_STAGE]
    note = (
        f"Mean of |X - D C| / |X| over {first['images']} photographs; weights from ImageNet, r = {first['r']}, "
        f"{first['dtype']}, {first['hardware']}, torch {first['torch']}, seed {first['seed']}, "
        f"commit {first['commit']} (`lab/experiments/columns.py`)."
    )
    every = markdown_table(["weights", *header], [[kind[0], *line] for kind, line in lines.items()])
    title = f"All {len(rows)} errors, also of a network with random weights"
    return "\n\n".join([markdown_table(header, sorted(shown, key=lambda line: line[0])), note, collapsed(title, every)])


def columns_time_table(rows: Sequence[Row]) -> str:
    """Return the times of a Hamburger from both starts."""
    lines = []
    for ham, n in dict.fromkeys((row["ham"], row["n"]) for row in rows):
        by_start = {row["init"]: row for row in select_rows(rows, ham=ham, n=n)}
        many, few = by_start["random"], by_start["columns"]
        times = [f"{row['ms']:.1f} ({row['ms_iqr']:.1f})" for row in (many, few)]
        lines.append([ham, f"{n:,}", *times, f"{many['ms'] / few['ms']:.2f}"])
    first = rows[0]
    header = ["ham", "n", *(f"{row['init']}, K = {row['steps']}, ms (IQR)" for row in (many, few)), "times faster"]
    note = (
        f"A Hamburger of {first['c']} channels in evaluation, breads included, r = {first['r']}, {first['dtype']}, "
        f"{first['hardware']}, CPU time of one thread, torch {first['torch']}, median of {first['repeats']} "
        f"rounds in turn on fresh inputs, seed {first['seed']}, commit {first['commit']}."
    )
    return f"{markdown_table(header, lines)}\n\n{note}"


def costs_table(rows: Sequence[Row]) -> str:
    """Return the errors of every ham by K, and its time; objectives and all times are collapsed."""
    counts = sorted({row["steps"] for row in rows})
    middle = counts[-2]
    lines, every = [], []
    for ham in dict.fromkeys(row["ham"] for row in rows):
        by_steps = {row["steps"]: row for row in select_rows(rows, ham=ham)}
        times = {k: f"{row['ms']:.0f} ({row['ms_iqr']:.0f})" for k, row in by_steps.items()}
        lines.append([f"`{ham}`", *(f"{by_steps[k]['error']:.3f}" for k in counts), times[middle]])
        objectives = [f"{by_steps[k]['objective']:.4f}" for k in counts]
        every.append([f"`{ham}`", *objectives, *(times[k] for k in counts)])
    r = rows[0]
    header = ["ham", *(f"error, K = {k}" for k in counts), f"ms, K = {middle} (IQR)"]
    long_header = ["ham", *(f"objective, K = {k}" for k in counts), *(f"ms, K = {k} (IQR)" for k in counts)]
    note = (
        f"Error: mean of |X - D C| / |X| over {r['inputs']} inputs ({r['input']}), the same for all hams, "
        f"d = {r['d']}, n = {r['n']:,}, r = {r['r']}, {r['dtype']}, default options. Time: CPU time of one thread "
        f"for a solve without a graph, {r['hardware']}, torch {r['torch']}, median of {r['repeats']} solves in turn, "
        f"seed {r['seed']}, commit {r['commit']} (`lab/experiments/ham_costs.py`)."
    )
    title = "Objectives, in units of |X|^2 / 2, and all times"
    return "\n\n".join([markdown_table(header, lines), note, collapsed(title, markdown_table(long_header, every))])


def products_table(rows: Sequence[Row]) -> str:
    """Return the times of the hams by each library and dtype of X, and their errors."""
    half = select_rows(rows, dtype="bfloat16")
    tables = []
    for dtype, title, names in (
        ("float32", "X in float32: times and errors", {"mkl": "MKL", "onednn": "oneDNN"}),
        (
            "bfloat16",
            "X in bfloat16: times",
            {"mkl": "MKL, float32", "onednn": "oneDNN, float32", "onednn-bfloat16": "oneDNN, bfloat16"},
        ),
    ):
        header = ["ham", "mode", "n", *(f"{name}, ms (IQR)" for name in names.values()), "times faster than MKL"]
        header += [f"error, {name}" for name in names.values()] if dtype == "float32" else []
        lines = []
        for group in _by_library(select_rows(rows, dtype=dtype, input="noise")):
            first, last = group["mkl"], group[list(names)[-1]]
            times = [f"{group[key]['ms']:.1f} ({group[key]['ms_iqr']:.1f})" for key in names]
            errors = [f"{group[key]['error']:.1e}" for key in names] if dtype == "float32" else []
            speed = f"{first['ms'] / last['ms']:.2f}"
            lines.append([first["ham"], first["mode"], f"{first['n']:,}", *times, speed, *errors])
        tables.append(collapsed(title, markdown_table(header, lines)))
    lines = []
    for group in _by_library(half):
        first, last = group["onednn"], group["onednn-bfloat16"]
        residuals = ["" if row["residual"] is None else f"{row['residual']:.4f}" for row in (first, last)]
        errors = [f"{value:.1e}" for value in (first["error"], last["error"], first["rounding"])]
        lines.append([first["ham"], first["mode"], first["input"], f"{first['n']:,}", *errors, *residuals])
    header = ["ham", "mode", "input", "n", "error, float32", "error, bfloat16", "rounding X", "residual, float32"]
    tables.append(collapsed("X in bfloat16: errors", markdown_table([*header, "residual, bfloat16"], lines)))
    first = rows[0]
    note = (
        f"{first['hardware']}, CPU time of one thread, torch {first['torch']}, b = 1, d = {first['d']}, "
        f"r = {first['r']}, K = {first['steps']}, median of {first['repeats']} calls in turn, seed {first['seed']}, "
        f"commit {first['commit']}. Errors of D C (infer) and of the one-step gradient (train) are relative to float64 "
        "on the same X; *rounding X* is the change of the float64 result when X is rounded to bfloat16; a residual is "
        "|X - D C| / |X|. Inputs: normal numbers (timed), and columns near 40 non-negative centres. VQ and CD at "
        "temperature 0.01 amplify rounding."
    )
    return "\n\n".join([*tables, note])


def _by_library(rows: Sequence[Row]) -> list[dict[str, Row]]:
    """Return the rows that differ in the library alone, by library."""
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in ("ham", "mode", "input", "n")), {})[row["library"]] = row
    return list(groups.values())


def deploy_table(rows: Sequence[Row]) -> str:
    """Return the time of a network on a CPU in each runtime."""
    base = select_rows(rows, runtime="onnxruntime", dtype="float32")[0]
    lines = [
        [row["runtime"], row["dtype"], f"{row['ms']:.1f} ({row['ms_iqr']:.1f})", f"{base['ms'] / row['ms']:.2f}"]
        for row in rows
    ]
    versions = ", ".join(dict.fromkeys(f"{row['runtime'].split('.')[0]} {row['version']}" for row in rows))
    note = (
        f"Recipe {base['recipe']} with random weights, one image of {base['side']} x {base['side']}, "
        f"{base['hardware']}, CPU time of one thread, {versions}, "
        f"median of {base['repeats']} calls in turn, commit {base['commit']}."
    )
    header = ["runtime", "dtype", "ms (IQR)", "times as fast as ONNX Runtime"]
    return f"{markdown_table(header, lines)}\n\n{note}"


def profile_markdown(rows: Sequence[Row]) -> str:
    """Return the time of each kernel by n in both modes."""
    columns = sorted({(row["mode"], row["n"]) for row in rows})
    first = rows[0]
    note = (
        f"{first['hardware']}, {first['dtype']}, b = {first['batch']}, c = {first['channels']}, torch "
        f"{first['torch']}, means of {first['calls']} calls on alternating inputs, seed {first['seed']}, commit "
        f"{first['commit']}. Wall time is measured without the profiler: the median of 5 blocks of "
        f"{first['calls']} calls."
    )
    header = ["module", "kernel", *(f"{mode}, n = {n:,}" for mode, n in columns)]
    return f"{markdown_table(header, list(kernel_lines(rows, columns)))}\n\n{note}"


def carried_table(rows: Sequence[Row]) -> str:
    """Return the errors on video of a fixed and of a carried dictionary, and the carried steps that match the most."""
    most = max(row["steps"] for row in rows)
    lines = []
    for ham, speed in dict.fromkeys((row["ham"], row["speed"]) for row in rows):
        errors: dict[tuple[str, int], float] = {}
        for init, steps in dict.fromkeys((row["init"], row["steps"]) for row in rows):
            photos = select_rows(rows, ham=ham, speed=speed, init=init, steps=steps)
            errors[init, steps] = sum(row["error"] for row in photos) / len(photos)
        reached = [k for k in range(1, most + 1) if errors["carry", k] <= errors["fixed", most]]
        shown = [errors["fixed", 1], errors["fixed", most], errors["carry", 1], errors["carry", most]]
        lines.append([ham, str(speed), *(f"{error:.3f}" for error in shown), str(reached[0]) if reached else "none"])
    header = ["ham", "pixels a frame", "fixed, K = 1", f"fixed, K = {most}", "carry, K = 1", f"carry, K = {most}"]
    r = rows[0]
    return (
        f"{markdown_table([*header, f'carried steps as good as fixed, K = {most}'], lines)}\n\n"
        f"Relative error of D C, mean over {r['frames'] - 1} frames of windows that move over "
        f"{len({row['photo'] for row in rows})} photos; X holds pixel patches, d = {r['d']}, n = {r['n']}, "
        f"r = {r['r']} (`lab/experiments/carried_dictionary.py`, {r['hardware']})."
    )
