"""`ham bench gradients`: rows, what grows with the steps, and refusals. Nothing here asserts that anything is fast."""

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


def test_the_command_prints_a_table_and_writes_rows(tmp_path):
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
def test_memory_grows_with_the_sweeps_where_all_of_them_are_kept(device):
    found = peaks(device)
    for ham in ("nmf", "vq", "cd"):
        assert found[ham, "one-step", 16] == pytest.approx(found[ham, "one-step", 4], rel=0.02)
        assert found[ham, "bptt", 16] > 1.5 * found[ham, "bptt", 4]


@pytest.mark.parametrize("grad", ["one-step", "truncated:2", "bptt"])
def test_what_is_timed_is_the_gradient_of_the_library(grad):
    problem = bench.bench.HamProblem(bench.GradientPlan(**SMALL).alone(60, 3), "nmf", 60, torch.float32)
    x = problem.inputs[0].clone().requires_grad_()
    out = decompose(x, problem.ham, steps=3, grad=grad, bases=problem.bases)
    (expected,) = torch.autograd.grad(out.reconstruction, x, problem.cotangent)
    torch.testing.assert_close(bench.input_gradient(problem, problem.inputs[0], grad), expected)


def test_a_refusal_is_said():
    rows = list(
        bench.measure(
            bench.GradientPlan(
                **SMALL | {"sizes": (20,), "rank": 2}, steps=(1,), hams=("nmf",), gradients=("one-step", "implicit")
            )
        )
    )
    assert [row.refused for row in rows] == [None, "not near a fixed point"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"repeats": 2}, "repeats"),
        ({"steps": (0,)}, "steps"),
        ({"gradients": ("bppt",)}, "did you mean 'bptt'"),
        ({"hams": ("nmff",)}, "nmf"),
        ({"sizes": ()}, "at least one of the sizes"),
        ({"sizes": (0,)}, "a size"),
    ],
)
def test_mistakes_are_named(options, said):
    with pytest.raises(OptionError, match=said):
        bench.GradientPlan(**SMALL | options)
