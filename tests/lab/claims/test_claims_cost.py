"""Verdicts on time and memory: exponents, quartiles and missing measurements."""

from __future__ import annotations

import pytest
from claim_rows import gradient_rows

from hamburger_lab.claims import CLAIMS, Results
from hamburger_lab.claims.base import CONFIRMED, INCONCLUSIVE, NOT_CONFIRMED
from hamburger_lab.claims.tables import as_rows


@pytest.mark.parametrize(
    ("bptt", "words"),
    [
        ((20, 80, 30, 90), (CONFIRMED, CONFIRMED, CONFIRMED)),
        ((10.5, 40.5, 30, 31), (CONFIRMED, NOT_CONFIRMED, INCONCLUSIVE)),  # within the quartiles, and memory as before
        ((5, 20, 10, 30), (NOT_CONFIRMED, CONFIRMED, NOT_CONFIRMED)),
    ],
)
def test_gradient_cost_is_judged_by_memory_growth_and_time_quartiles(bptt, words):
    results = Results({"gradients_h200": gradient_rows(one_step=(10, 40, 20, 20), bptt=bptt)})
    names = ("cost-gradient-memory", "cost-gradient-growth", "cost-gradient-time")
    result = {claim.id: claim.judge(results) for claim in CLAIMS if claim.id in names}
    assert tuple(result[name].outcome for name in names) == words
    assert "10 samples" in result["cost-gradient-time"].here
    assert as_rows([(claim, result[claim.id]) for claim in CLAIMS if claim.id in names])[0]["n_seeds"] == 1


def test_overlapping_times_are_inconclusive():
    def rows(iqr):
        common = {"dtype": "float32", "n": 16384, "hardware": "H", "infer_mb": 1, "train_mb": 1}
        return [
            common
            | {"module": module}
            | {f"{mode}_{key}": value for mode in ("infer", "train") for key, value in times}
            for module, ms in (("sa-materialised", 12.0), ("nmf", 10.0), ("vq", 10.0), ("cd", 10.0))
            for times in [(("ms", ms), ("ms_iqr", iqr), ("repeats", 20))]
        ]

    claim = next(claim for claim in CLAIMS if claim.id == "cost-time")
    assert claim.judge(Results({"table3_h200": rows(0.5)})).outcome == CONFIRMED
    assert claim.judge(Results({"table3_h200": rows(5.0)})).outcome == INCONCLUSIVE


def test_growth_is_judged_by_its_exponent():
    def rows(power):
        return [
            {
                "module": module,
                "dtype": "float32",
                "n": n,
                "hardware": "H",
                **dict.fromkeys(fields, (n / 1024) ** power),
            }
            for module in ("nmf", "vq", "cd")
            for n in (1024, 65536, 262144)
            for fields in [("infer_ms", "train_ms", "infer_mb", "train_mb")]
        ]

    words = {}
    for power in (1.0, 2.0):
        results = Results({"table3_h200": rows(power)})
        words[power] = {claim.id: claim.judge(results) for claim in CLAIMS if claim.family == "cost"}
    assert words[1.0]["cost-linear-time"].outcome == words[1.0]["cost-linear-memory"].outcome == CONFIRMED
    assert words[2.0]["cost-linear-time"].outcome == words[2.0]["cost-linear-memory"].outcome == NOT_CONFIRMED
    assert words[2.0]["cost-linear-time"].decisive.effect == pytest.approx(2.0)


def test_growth_is_not_computed_between_two_commits():
    """Kernels of another commit may be ten times as slow: the difference is no growth."""
    figures = [("new", 16384, 1.0), ("new", 65536, 4.0), ("old", 262144, 160.0)]
    rows = [
        {"module": ham, "dtype": "float32", "n": n, "hardware": "H", "commit": commit, "infer_ms": ms, "train_ms": ms}
        for ham in ("nmf", "vq", "cd")
        for commit, n, ms in figures
    ]
    claim = next(claim for claim in CLAIMS if claim.id == "cost-linear-time")
    verdict = claim.judge(Results({"table3_h200": rows}))
    assert verdict.outcome == CONFIRMED and verdict.decisive.effect == pytest.approx(1.0)
    assert "left out, from other commits: nmf float32 n = 262,144" in verdict.here


def test_launch_bound_times_are_no_evidence_of_linear_growth():
    """Launch overhead is the same at every n: an exponent of 0.2 does not show growth."""

    def judged_with(last):
        rows = [
            {"module": module, "dtype": "float32", "n": n, "hardware": "H", "infer_ms": ms, "train_ms": ms}
            for module in ("nmf", "vq", "cd")
            for n, ms in ((1024, 1.0), (16384, 1.0), (65536, last))
        ]
        return next(c for c in CLAIMS if c.id == "cost-linear-time").judge(Results({"table3_h200": rows}))

    assert judged_with(3.1).outcome == CONFIRMED and "flat" not in judged_with(3.1).here
    assert judged_with(2.9).outcome == INCONCLUSIVE
    assert "still flat, less than 3 times" in judged_with(2.9).here
    assert "nmf infer float32 up to n = 65,536" in judged_with(2.9).here
    assert judged_with(9.0).outcome == NOT_CONFIRMED


def test_missing_measurements_confirm_nothing():
    whole = gradient_rows(one_step=(10, 40, 20, 20), bptt=(20, 80, 30, 90))
    cut = [row for row in whole if (row["ham"], row["steps"]) != ("cd", 24)]
    gpu = [row | {"device": "cuda", "n": 4096} for row in whole]  # the other size of the command has no row
    for name in ("cost-gradient-memory", "cost-gradient-growth", "cost-gradient-time"):
        claim = next(claim for claim in CLAIMS if claim.id == name)
        assert claim.judge(Results({"gradients_x": whole})).outcome == CONFIRMED
        for rows, missing in ((cut, "cd"), (gpu, "16,384")):
            result = claim.judge(Results({"gradients_x": rows}))
            assert result.outcome == INCONCLUSIVE and missing in result.here.partition("not run: ")[2]
    growth = next(claim for claim in CLAIMS if claim.id == "cost-gradient-growth")
    assert "nmf bptt, n = 64, K = 24 / K = 6" in {
        f.label for f in growth.judge(Results({"gradients_x": whole})).trials[0].findings
    }


@pytest.mark.parametrize("name", ["cost-linear-memory", "cost-memory"])
def test_ham_without_table3_rows_is_noted(name):
    rows = [
        {"module": module, "dtype": "float32", "n": n, "hardware": "H", "infer_mb": mb, "train_mb": mb}
        for module, scale in (("sa-materialised", 9.0), ("nmf", 1.0), ("vq", 1.0), ("cd", 1.0))
        for n, mb in ((4096, scale), (16384, 4 * scale))
    ]
    claim = next(claim for claim in CLAIMS if claim.id == name)
    assert claim.judge(Results({"table3_h200": rows})).outcome == CONFIRMED
    without = claim.judge(Results({"table3_h200": [row for row in rows if row["module"] != "vq"]}))
    assert without.outcome == INCONCLUSIVE and "vq" in without.here.partition("not run: ")[2]
