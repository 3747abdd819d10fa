"""`ham bench ham`: rows, roofline and correctness check; no test depends on speed."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from hamburger.cli.app import app
from hamburger.errors import OptionError
from hamburger_lab.bench import ham, roofline
from hamburger_lab.bench.common import WrongResultError

SMALL = {"sizes": (40,), "dim": 16, "rank": 4, "steps": 1, "repeats": 2}


@pytest.fixture(autouse=True)
def small_probes(monkeypatch):
    monkeypatch.setitem(roofline.EDGE, "cpu", 64)
    monkeypatch.setitem(roofline.COPY, "cpu", 2**16)


def test_command_prints_a_table_and_writes_rows(tmp_path):
    target = tmp_path / "rows.jsonl"
    options = ["--sizes", "40,50", "--dim", "16", "--rank", "4", "--steps", "1", "--repeats", "2"]
    result = CliRunner().invoke(app, ["bench", "ham", *options, "--dtype", "float32,bfloat16", "--json", str(target)])
    assert result.exit_code == 0, result.output
    assert "roofline" in result.stdout
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(rows) == 2 * 2 * 3 * 2
    want = {"ham", "backend", "b", "d", "n", "r", "steps", "dtype", "ms", "ms_iqr", "fraction_of_floor"}
    assert want | {"hardware", "torch", "commit", "date", "seed"} <= set(rows[0])
    assert all(row["backend"] == "plain" and row["ms"] > 0 and row["fraction_of_floor"] > 0 for row in rows)


def test_multiply_adds_match_the_paper():
    """n = 16,384, d = 512, r = 64, K = 6: 8.95e9 multiply-adds, as derived by hand."""
    assert roofline.multiply_adds("nmf", "infer", 1, 512, 16384, 64, 6) == pytest.approx(8.95e9, rel=1e-3)
    for name in ham.HAMS:
        infer, train = (roofline.multiply_adds(name, mode, 1, 512, 16384, 64, 6) for mode in ham.MODES)
        assert infer < train < 1.5 * infer


def test_roofline_is_the_larger_of_arithmetic_and_memory():
    sizes = ("nmf", "infer", 1, 512, 16384, 64, 6, 2)
    arithmetic = roofline.floor_ms(*sizes, roofline.DeviceRates(tflops=714.0, gbs=1e9))
    memory = roofline.floor_ms(*sizes, roofline.DeviceRates(tflops=1e9, gbs=4200.0))
    assert arithmetic == pytest.approx(0.025, rel=0.02) and memory == pytest.approx(0.008, rel=0.02)
    assert roofline.floor_ms(*sizes, roofline.DeviceRates(tflops=714.0, gbs=4200.0)) == arithmetic


def test_wrong_results_are_not_timed(monkeypatch):
    right = ham.HamProblem.solve
    monkeypatch.setattr(
        ham.HamProblem, "solve", lambda self, x, b: right(self, x, b) * (1.1 if x.dtype == torch.float32 else 1)
    )
    with pytest.raises(WrongResultError, match=r"NMF \(plain, infer\) differs from float64 by 0\.1"):
        list(ham.measure(ham.HamAlonePlan(**SMALL)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hams": ("nmg",)}, "did you mean 'nmf'"),
        ({"backends": ("fused",)}, "backend 'fused' cannot run here: .*use --backends plain"),
        ({"dtypes": ("tf32",)}, "tf32 is a mode of cuda"),
        ({"modes": ()}, "give at least one mode"),
        ({"repeats": 1}, "repeats must be a whole number of at least 2"),
    ],
    ids=str,
)
def test_mistakes(options, message):
    with pytest.raises(OptionError, match=message):
        ham.HamAlonePlan(**(SMALL | options))


@pytest.mark.gpu
def test_gpu_times_both_backends():
    rows = list(
        ham.measure(
            ham.HamAlonePlan(device="cuda", backends=ham.BACKENDS, dtypes=("float32", "bfloat16"), sizes=(4096,))
        )
    )
    assert {row.backend for row in rows} == set(ham.BACKENDS)
    assert all(0 < row.fraction_of_floor < 1.2 for row in rows)
