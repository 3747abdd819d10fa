"""Claims about cost: Table 3, growth with n, and time and memory of each gradient of a ham.

Times are medians of repeated calls with one seed and have no interval over seeds. One time is shorter than another if
its upper quartile is below the other's lower one. Memory is counted and has no spread.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import product

from hamburger_lab.bench.common import growth_exponent
from hamburger_lab.claims.base import (
    CONFIRMED,
    INCONCLUSIVE,
    NOT_CONFIRMED,
    READINGS,
    Claim,
    Finding,
    GradientReading,
    Trial,
    Verdict,
    combine_trials,
)
from hamburger_lab.paper import SIZE
from hamburger_lab.rows import Results, Row

HAMS = ("nmf", "vq", "cd")
MODES = ("infer", "train")
TABLE3_COMMAND = (
    "ham bench table3 --device cuda --dtype float32 --sizes 1024,4096,16384,65536,262144 "
    "--json results/table3_h200.jsonl"
)
LINEAR, QUADRATIC = 1.1, 1.8  # largest exponent that counts as linear, smallest that counts as quadratic
MIN_GROWTH = 3.0  # if the largest n takes less than this times the smallest n, calls are launch-bound
SIZES, STEPS = (4096, 16384), (6, 24)
GRADIENTS_COMMAND = (
    f"ham bench gradients --device cuda --sizes {','.join(map(str, SIZES))} --steps {','.join(map(str, STEPS))} "
    "--json results/gradients_h200.jsonl"
)
QUARTILE_OFFSETS = {"lower": -0.5, "upper": 0.5}  # in interquartile ranges
FLAT, GROWN = 1.05, 1.5  # memory at four times the steps: at most FLAT is constant, at least GROWN is growth


def judge_growth(
    results: Results, modules: tuple[str, ...], unit: str, *, most: float | None = None, least: float | None = None
) -> Verdict:
    """Judge the exponents between the two largest sizes of one run; smaller sizes are launch-bound."""
    trials = []
    for rows in results.with_prefix("table3_h").values():  # GPUs only: the CPU file has too few sizes
        findings: list[Finding] = []
        left_out: list[str] = []
        flat: list[str] = []  # launch-bound
        missing: list[str] = []
        for dtype, module, mode in product(dict.fromkeys(row["dtype"] for row in rows), modules, MODES):
            field = f"{mode}_{unit}"
            figures = {row["n"]: row[field] for row in _select_rows(_one_run(rows, dtype), module, dtype) if row[field]}
            all_sizes = {row["n"] for row in _select_rows(rows, module, dtype) if row[field]}
            left_out += [f"{module} {dtype} n = {n:,}" for n in sorted(all_sizes - figures.keys())]
            largest = sorted(figures)[-2:]
            if len(largest) < 2:
                missing.append(f"{module} {mode} {dtype}")
                continue
            p = growth_exponent(largest, [figures[n] for n in largest])
            holds = (most is None or p <= most) and (least is None or p >= least)
            outcome = CONFIRMED if holds else NOT_CONFIRMED
            label = f"{module} {mode} {dtype}"
            if (
                unit == "ms"
                and most is not None
                and holds
                and figures[max(figures)] < MIN_GROWTH * figures[min(figures)]
            ):
                outcome = INCONCLUSIVE
                flat.append(f"{label} up to n = {max(figures):,}")
            findings.append(
                Finding(
                    label,
                    p,
                    interval=None,
                    n=1,
                    outcome=outcome,
                    unit="(exponent of n)",
                    template="{:.2f}",
                    against=most is not None,
                    counted="measurement of each n",
                    limit=least if most is None else most,
                )
            )
        if findings:
            notes = [f"left out, from other commits: {', '.join(dict.fromkeys(left_out))}"] if left_out else []
            if flat:
                rise = f"less than {MIN_GROWTH:g} times the time of the smallest n, so the exponent is not meaningful"
                notes.append(f"still flat, {rise}: {', '.join(flat)}")
            hardware, note = str(rows[0]["hardware"]), "; ".join(notes)
            trials.append(Trial(hardware, tuple(findings), missing=tuple(missing), note=note))
    return combine_trials(trials)


def judge_over_rival(
    results: Results, rival: str, unit: str, dtypes: tuple[str, ...], hams: tuple[str, ...]
) -> Verdict:
    """Judge the ratio of the rival's figure to ours at the size of Table 3."""
    trials = []
    for rows in results.with_prefix("table3_h").values():
        for dtype in dtypes:
            findings, missing = [], []
            for ham in hams:
                for mode in MODES:
                    field = f"{mode}_{unit}"
                    ours, theirs = (
                        next((row for row in _select_rows(rows, name, dtype) if row["n"] == SIZE and row[field]), None)
                        for name in (ham, rival)
                    )
                    label, samples = f"{rival} / {ham}, {mode}", f"{mode}_repeats"
                    if ours and theirs:
                        findings.append(ratio_finding(label, theirs, ours, field, samples=samples))
                    else:
                        missing.append(label)
            if findings:
                backends = sorted(
                    {row["backend"] for ham in hams for row in _select_rows(rows, ham, dtype) if "backend" in row}
                )
                solved = f", our hams by backend {' and '.join(backends)}" if backends else ""
                where = f"{rows[0]['hardware']}, {dtype}, n = {SIZE:,}{solved}"
                trials.append(Trial(where, tuple(findings), missing=tuple(missing)))
    return combine_trials(trials)


def ratio_finding(label: str, theirs: Row, ours: Row, field: str, *, samples: str) -> Finding:
    """Return the finding that theirs divided by ours is above 1 by more than the spread of the samples."""
    their_quartiles, our_quartiles = _quartiles(theirs, field), _quartiles(ours, field)
    if their_quartiles["lower"] > our_quartiles["upper"]:
        outcome = CONFIRMED
    else:
        outcome = NOT_CONFIRMED if their_quartiles["upper"] <= our_quartiles["lower"] else INCONCLUSIVE
    times = f"{field}_iqr" in ours
    n, counted = (min(row.get(samples) or 1 for row in (ours, theirs)), "sample") if times else (1, "measurement")
    return Finding(label, theirs[field] / ours[field], None, n, outcome, "times", "{:.2f}", counted=counted, limit=1.0)


def _quartiles(row: Row, field: str) -> dict[str, float]:
    """Return both quartiles, half the interquartile range from the median; the value itself if it has no spread."""
    return {
        name: float(row[field] + offset * (row.get(f"{field}_iqr") or 0.0)) for name, offset in QUARTILE_OFFSETS.items()
    }


def judge_gradient_cost(results: Results, *, unit: str, grad: str) -> Verdict:
    """Judge the cost of BPTT relative to a one-step gradient, for each ham, size and number of steps."""
    trials = []
    for rows in results.with_prefix("gradients_").values():
        by_case = {(row["ham"], row["n"], row["steps"], row["grad"]): row for row in rows}
        findings, missing = [], []
        sizes, counts = expected_measurements(rows)
        for n, ham, steps in product(sizes, HAMS, counts):
            label = f"{ham}, K = {steps}, n = {n:,}"
            bptt, one_step = (by_case.get((ham, n, steps, name)) for name in ("bptt", grad))
            if bptt and one_step:
                findings.append(ratio_finding(label, bptt, one_step, unit, samples="repeats"))
            else:
                missing.append(label)
        if findings:
            trials.append(Trial(str(rows[0]["hardware"]), tuple(findings), missing=tuple(missing)))
    return combine_trials(trials)


def judge_memory_growth(results: Results, *, one_step: str) -> Verdict:
    """Judge the growth of peak memory with K: constant for the gradient `one_step`, growing for BPTT."""
    trials = []
    for rows in results.with_prefix("gradients_").values():
        by_case = {(row["ham"], row["n"], row["grad"], row["steps"]): row["mb"] for row in rows}
        findings, missing = [], []
        sizes, counts = expected_measurements(rows)
        min_steps, max_steps = counts[0], counts[-1]
        for n, ham, grad in product(sizes, HAMS, (one_step, "bptt")):
            label = f"{ham} {grad}, n = {n:,}, K = {max_steps} / K = {min_steps}"
            before, after = (by_case.get((ham, n, grad, steps)) for steps in (min_steps, max_steps))
            if min_steps == max_steps or before is None or after is None:
                missing.append(label)
                continue
            ratio, constant = after / before, grad == one_step
            limit = FLAT if constant else GROWN
            outcome = CONFIRMED if (ratio <= limit if constant else ratio >= limit) else NOT_CONFIRMED
            findings.append(Finding(label, ratio, None, 1, outcome, "times", "{:.2f}", constant, "measurement", limit))
        if findings:
            trials.append(Trial(str(rows[0]["hardware"]), tuple(findings), missing=tuple(missing)))
    return combine_trials(trials)


def expected_measurements(rows: list[Row]) -> tuple[list[int], list[int]]:
    """Return the sizes and steps a file should have: those it has, and on a GPU those of the command."""
    on_gpu = rows[0].get("device") == "cuda"
    sizes, counts = ({row[key] for row in rows} for key in ("n", "steps"))
    return sorted(sizes | {*SIZES} if on_gpu else sizes), sorted(counts | {*STEPS} if on_gpu else counts)


def _one_run(rows: list[Row], dtype: str) -> list[Row]:
    """Return the rows of the most common commit of that dtype: kernels or protocol may differ between commits."""
    commits = Counter(row.get("commit") for row in rows if row["dtype"] == dtype)
    return [row for row in rows if row.get("commit") == commits.most_common(1)[0][0]]


def _select_rows(rows: list[Row], module: str, dtype: str) -> list[Row]:
    return [row for row in rows if row["module"] == module and row["dtype"] == dtype]


def gradient_claims(reading: GradientReading) -> tuple[Claim, ...]:
    phrase, condition = reading.phrase[0].upper() + reading.phrase[1:], "above 1 for each ham, K and n"
    return (
        Claim(
            id=reading.id("cost-gradient-memory"),
            family="cost",
            statement=f"{phrase} needs less memory than BPTT.",
            reference="section 2.3, after Eq. 13",
            paper="orders alone: O(1) against O(t)",
            test=f"peak memory of forward and backward of the ham alone, BPTT over {reading.grad}, {condition}",
            command=GRADIENTS_COMMAND,
            judge=partial(judge_gradient_cost, unit="mb", grad=reading.grad),
        ),
        Claim(
            id=reading.id("cost-gradient-growth"),
            family="cost",
            statement=f"Memory does not grow with the steps by {reading.phrase}, by BPTT it does.",
            reference="section 2.3, after Eq. 13",
            paper="orders alone: O(1) against O(t)",
            test=(
                f"peak memory at the most steps over that at the fewest: {reading.grad} up to {FLAT:g}, "
                f"BPTT from {GROWN:g} on"
            ),
            command=GRADIENTS_COMMAND,
            judge=partial(judge_memory_growth, one_step=reading.grad),
        ),
        Claim(
            id=reading.id("cost-gradient-time"),
            family="cost",
            statement=f"{phrase} takes less time than BPTT.",
            reference="section 2.3, after Eq. 13",
            paper="orders alone: O(1) against O(t); both run all steps",
            test=f"time of forward and backward of the ham alone, BPTT over {reading.grad}, {condition}",
            command=GRADIENTS_COMMAND,
            judge=partial(judge_gradient_cost, unit="ms", grad=reading.grad),
        ),
    )


CLAIMS = (
    Claim(
        id="cost-linear-time",
        family="cost",
        statement="The time of a Hamburger grows no faster than linearly with the number of positions n.",
        reference="section 2.2, Table 3",
        paper="O(n) by construction; 7.7 ms at n = 16,384 (NMF, inference, TITAN Xp)",
        test=(
            f"exponent of time between the two largest n, at most {LINEAR}, for each ham and precision, where the "
            f"largest takes {MIN_GROWTH:g} times the time of the smallest or more"
        ),
        command=TABLE3_COMMAND,
        judge=partial(judge_growth, modules=HAMS, unit="ms", most=LINEAR),
    ),
    Claim(
        id="cost-linear-memory",
        family="cost",
        statement="A Hamburger holds nothing of size n x n: its memory grows no faster than linearly.",
        reference="section 3.3, Table 3",
        paper="98 MB in inference, 202 MB in training at n = 16,384 (NMF)",
        test=f"exponent of peak memory between the two largest n, at most {LINEAR}, for each ham and precision",
        command=TABLE3_COMMAND,
        judge=partial(judge_growth, modules=HAMS, unit="mb", most=LINEAR),
    ),
    Claim(
        id="cost-attention-quadratic",
        family="cost",
        statement="Self-attention as the paper measures it, with its scores in memory, grows with n squared.",
        reference="section 3.3, Table 3",
        paper="2,148 MB in inference, 5,253 MB in training at n = 16,384",
        test=f"exponent of peak memory between the two largest n, at least {QUADRATIC}, in each precision",
        command=TABLE3_COMMAND,
        judge=partial(judge_growth, modules=("sa-materialised",), unit="mb", least=QUADRATIC),
    ),
    Claim(
        id="cost-memory",
        family="cost",
        statement="At the size of Table 3 a Hamburger needs less memory than self-attention.",
        reference="Table 3",
        paper="SA over NMF: 21.9 in inference, 26.0 in training",
        test="peak memory of self-attention with scores in memory over that of each ham, float32, above 1",
        command=TABLE3_COMMAND,
        judge=partial(judge_over_rival, rival="sa-materialised", unit="mb", dtypes=("float32",), hams=HAMS),
    ),
    Claim(
        id="cost-time",
        family="cost",
        statement="At the size of Table 3 a Hamburger is faster than self-attention.",
        reference="Table 3",
        paper="SA over NMF: 10.7 in inference, 15.5 in training; over CD 6.3 and 12.1",
        test="time of self-attention with scores in memory over that of each ham, float32, above 1",
        command=TABLE3_COMMAND,
        judge=partial(judge_over_rival, rival="sa-materialised", unit="ms", dtypes=("float32",), hams=HAMS),
    ),
    Claim(
        id="cost-time-fused",
        family="cost",
        statement="It is also faster than self-attention with today's fused kernels, in half precision.",
        reference="Table 3, with today's kernels",
        paper="not examined: such kernels did not exist",
        test="time of fused attention divided by that of each ham, bfloat16, above 1 in both modes",
        command=TABLE3_COMMAND,
        judge=partial(judge_over_rival, rival="sa-flash", unit="ms", dtypes=("bfloat16",), hams=HAMS),
        ours=True,
    ),
    *(claim for reading in READINGS for claim in gradient_claims(reading)),
)
