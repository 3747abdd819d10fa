"""Table 3 and its growth with n. Medians of repeated calls, not seeds: there is no interval over seeds to give."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import product

from hamburger.analysis.claims.base import CONFIRMED, NOT_CONFIRMED, Claim, Finding, Trial, Verdict, combined
from hamburger.analysis.claims.results import Results, Row
from hamburger.bench.growth import exponent
from hamburger.bench.paper import SIZE

HAMS = ("nmf", "vq", "cd")
MODES = ("infer", "train")
COMMAND = (
    "ham bench table3 --device cuda --dtype float32 --sizes 1024,4096,16384,65536,262144 "
    "--json results/table3_h200.jsonl"
)
LINEAR, QUADRATIC = 1.1, 1.8  # exponents that still count as n, and as n squared


def growth(
    results: Results, modules: tuple[str, ...], unit: str, *, most: float | None = None, least: float | None = None
) -> Verdict:
    """Exponents between the two largest sizes at which a module ran in one run: small ones are launches, not work."""
    trials = []
    for rows in results.beginning("table3_h").values():  # cards alone: two sizes are too few on a processor
        findings = []
        for dtype, module, mode in product(dict.fromkeys(row["dtype"] for row in rows), modules, MODES):
            field = f"{mode}_{unit}"
            had = {row["n"]: row[field] for row in _of(_one_run(rows, dtype), module, dtype) if row[field]}
            ends = sorted(had)[-2:]
            if len(ends) < 2:
                continue
            p = exponent(ends, [had[n] for n in ends])
            holds = (most is None or p <= most) and (least is None or p >= least)
            word = CONFIRMED if holds else NOT_CONFIRMED
            what = f"{module} {mode} {dtype}"
            findings.append(Finding(what, p, None, 1, word, "(exponent of n)", "{:.2f}", against=most is not None))
        if findings:
            trials.append(Trial(str(rows[0]["hardware"]), tuple(findings)))
    return combined(trials)


def over(results: Results, rival: str, unit: str, dtypes: tuple[str, ...], hams: tuple[str, ...]) -> Verdict:
    """The rival's figure over ours at the size of Table 3."""
    trials = []
    for rows in results.beginning("table3_h").values():
        for dtype in dtypes:
            findings = []
            for ham in hams:
                for mode in MODES:
                    field = f"{mode}_{unit}"
                    ours, theirs = (
                        next((row[field] for row in _of(rows, name, dtype) if row["n"] == SIZE and row[field]), None)
                        for name in (ham, rival)
                    )
                    if ours and theirs:
                        word = CONFIRMED if theirs > ours else NOT_CONFIRMED
                        findings.append(
                            Finding(f"{rival} / {ham}, {mode}", theirs / ours, None, 1, word, "times", "{:.2f}")
                        )
            if findings:
                backends = sorted({row["backend"] for ham in hams for row in _of(rows, ham, dtype) if "backend" in row})
                solved = f", our hams by backend {' and '.join(backends)}" if backends else ""
                trials.append(Trial(f"{rows[0]['hardware']}, {dtype}, n = {SIZE:,}{solved}", tuple(findings)))
    return combined(trials)


def _one_run(rows: list[Row], dtype: str) -> list[Row]:
    """Of the commit that most rows of that dtype are of: another one's kernels, or protocol, may be others."""
    commits = Counter(row.get("commit") for row in rows if row["dtype"] == dtype)
    return [row for row in rows if row.get("commit") == commits.most_common(1)[0][0]]


def _of(rows: list[Row], module: str, dtype: str) -> list[Row]:
    return [row for row in rows if row["module"] == module and row["dtype"] == dtype]


CLAIMS = (
    Claim(
        id="cost-linear-time",
        family="cost",
        statement="The time of a Hamburger grows no faster than linearly with the number of positions n.",
        reference="section 2.2, Table 3",
        paper="O(n) by construction; 7.7 ms at n = 16,384 (NMF, inference, TITAN Xp)",
        test=f"exponent of time between the two largest n, at most {LINEAR}, for each ham and precision",
        command=COMMAND,
        judge=partial(growth, modules=HAMS, unit="ms", most=LINEAR),
    ),
    Claim(
        id="cost-linear-memory",
        family="cost",
        statement="A Hamburger holds nothing of size n x n: its memory grows no faster than linearly.",
        reference="section 3.3, Table 3",
        paper="98 MB in inference, 202 MB in training at n = 16,384 (NMF)",
        test=f"exponent of peak memory between the two largest n, at most {LINEAR}, for each ham and precision",
        command=COMMAND,
        judge=partial(growth, modules=HAMS, unit="mb", most=LINEAR),
    ),
    Claim(
        id="cost-attention-quadratic",
        family="cost",
        statement="Self-attention as the paper measures it, with its scores in memory, grows with n squared.",
        reference="section 3.3, Table 3",
        paper="2,148 MB in inference, 5,253 MB in training at n = 16,384",
        test=f"exponent of peak memory between the two largest n, at least {QUADRATIC}, in each precision",
        command=COMMAND,
        judge=partial(growth, modules=("sa-materialised",), unit="mb", least=QUADRATIC),
    ),
    Claim(
        id="cost-memory",
        family="cost",
        statement="At the size of Table 3 a Hamburger needs far less memory than self-attention.",
        reference="Table 3",
        paper="SA over NMF: 21.9 in inference, 26.0 in training",
        test="peak memory of self-attention with scores in memory over that of each ham, float32, above 1",
        command=COMMAND,
        judge=partial(over, rival="sa-materialised", unit="mb", dtypes=("float32",), hams=HAMS),
    ),
    Claim(
        id="cost-time",
        family="cost",
        statement="At the size of Table 3 a Hamburger is faster than self-attention.",
        reference="Table 3",
        paper="SA over NMF: 10.7 in inference, 15.5 in training; over CD 6.3 and 12.1",
        test="time of self-attention with scores in memory over that of each ham, float32, above 1",
        command=COMMAND,
        judge=partial(over, rival="sa-materialised", unit="ms", dtypes=("float32",), hams=HAMS),
    ),
    Claim(
        id="cost-time-fused",
        family="cost",
        statement="It is also faster than self-attention by today's fused kernels, in half precision.",
        reference="Table 3, read as if it were of today",
        paper="not examined: such kernels came later",
        test="time of fused attention over that of each ham as the rows have it, bfloat16, above 1 in both modes",
        command=COMMAND,
        judge=partial(over, rival="sa-flash", unit="ms", dtypes=("bfloat16",), hams=HAMS),
    ),
)
