"""`ham bench gradients`: rows, growth with the steps, and refusals; no test depends on speed."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from hamburger.cli.app import app
from hamburger.errors import OptionError
from hamburger.hams.decompose import decompose
from hamburger_lab.bench import gradients as bench

SMALL = {"sizes": (60,), "dim": 16, "rank": 4, "repeats": 5}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.mark.full
def test_command_prints_a_table_and_writes_rows(tmp_path):
    target = tmp_path / "rows.jsonl"
    options = ["--sizes", "400", "--dim", "16", "--rank", "2", "--steps", "2,8", "--repeats", "5", "--hams", "nmf,cd"]
    grads = ["--grads", "one-step,truncated:1,bptt"]
    result = CliRunner().invoke(app, ["bench", "gradients", *options, *grads, "--json", str(target)])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(row["steps"], row["ham"]) for row in rows[::3]] == [(2, "nmf"), (2, "cd"), (8, "nmf"), (8, "cd")]
    assert [row["grad"] for row in rows[:3]] == ["one-step", "truncated:1", "bptt"]
    assert {"hardware", "torch", "commit", "date", "seed", "ms_iqr"} <= set(rows[0])
    assert all(row["ms"] > 0 and row["mb"] > 0 and row["refused"] is None for row in rows)


def peaks(device):
    plan = bench.GradientPlan(
        **SMALL | {"sizes": (2048,)}, steps=(4, 16), gradients=("one-step", "bptt"), device=device
    )
    return {(row.ham, row.grad, row.steps): row.mb for row in bench.measure(plan)}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.full
def test_memory_grows_with_steps_for_bptt_only(device):
    result = peaks(device)
    for ham in ("nmf", "vq", "cd"):
        assert result[ham, "one-step", 16] == pytest.approx(result[ham, "one-step", 4], rel=0.02)
        assert result[ham, "bptt", 16] > 1.5 * result[ham, "bptt", 4]


@pytest.mark.parametrize("grad", ["one-step", "truncated:2", "bptt"])
def test_timed_gradient_matches_the_library(grad):
    problem = bench.bench.HamProblem(bench.GradientPlan(**SMALL).ham_plan(60, 3), "nmf", 60, torch.float32)
    x = problem.inputs[0].clone().requires_grad_()
    out = decompose(x, problem.ham, steps=3, grad=grad, bases=problem.bases)
    (expected,) = torch.autograd.grad(out.reconstruction, x, problem.cotangent)
    torch.testing.assert_close(bench.input_gradient(problem, problem.inputs[0], grad), expected)


def test_implicit_refusal_is_in_the_row():
    rows = list(
        bench.measure(
            bench.GradientPlan(
                **SMALL | {"sizes": (20,), "rank": 2}, steps=(1,), hams=("nmf",), gradients=("one-step", "implicit")
            )
        )
    )
    assert [row.refused for row in rows] == [None, "not near a fixed point"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 2}, "repeats"),
        ({"steps": (0,)}, "steps"),
        ({"gradients": ("bppt",)}, "did you mean 'bptt'"),
        ({"hams": ("nmff",)}, "nmf"),
        ({"sizes": ()}, "at least one value of sizes"),
        ({"sizes": (0,)}, "a size"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        bench.GradientPlan(**SMALL | options)
